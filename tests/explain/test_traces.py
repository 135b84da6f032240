"""Traces of profilers: busy time, what a device waited for, and what cannot be known."""

from __future__ import annotations

import gzip
import json
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout_explain.diagnosis import Diagnosis
from flatout_explain.errors import FlatoutError
from flatout_explain.trace import chrome, collecting, load
from flatout_explain.trace.diagnose import diagnose
from flatout_explain.trace.events import Kind
from flatout_explain.trace.intervals import length, meeting, overlap, union, without
from tests.explain.recorded_traces import MS, Framework, Kineto

Write = Callable[[Kineto], None]


def explained(path: Path) -> Diagnosis:
    found = diagnose(load.load(path), str(path))
    found.check()
    assert sum(found.phases.values()) == pytest.approx(1.0) or not found.busy
    return found


def steps(trace: Kineto, step: Write, number: int = 4) -> None:
    for each in range(number):
        begin = trace.t
        step(trace)
        trace.step(each, begin)


def computes(trace: Kineto) -> None:
    """The host is always ahead."""
    for _ in range(20):
        trace.launch(1 * MS)
    trace.t = max(trace.t, trace.free - 2 * MS)


def loads(trace: Kineto) -> None:
    trace.host(10 * MS, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
               "user_annotation")  # fmt: skip
    trace.launch(8 * MS)
    trace.wait()


def launches(trace: Kineto) -> None:
    for _ in range(200):
        trace.host(40.0, "aten::mul")
        trace.launch(4.0, "elementwise")


def copies(trace: Kineto) -> None:
    trace.launch(2 * MS)
    for _ in range(4):
        trace.launch(3 * MS, "Memcpy DtoH", "gpu_memcpy", "MemcpyAsync")
        trace.wait()


def exchanges(trace: Kineto) -> None:
    trace.launch(5 * MS)
    trace.launch(5 * MS, "ncclDevKernel_AllReduce_Sum_f32")
    trace.t = trace.free


def steps_environments(trace: Kineto) -> None:
    trace.python(6 * MS, "gymnasium/wrappers/common.py", 125, "step")
    trace.launch(1 * MS)
    trace.wait()


def prepares(trace: Kineto) -> None:
    trace.python(6 * MS, "/home/me/train.py", 40, "prepare")
    trace.launch(1 * MS)
    trace.wait()


CAUSES: list[tuple[Write, str, float]] = [
    (computes, "healthy", 1.0),
    (loads, "input-bound", 8 / 18),
    (launches, "launch-bound", 4 / 45),
    (copies, "transfer-bound", 1.0),
    (exchanges, "communication-bound", 1.0),
    (steps_environments, "env-bound", 1 / 7),
    (prepares, "host-bound", 1 / 7),
]


@pytest.mark.parametrize(
    ("format_", "step", "verdict", "busy"),
    [
        (format_, *cause)
        for format_ in ("2021", "today", "amd")
        for cause in CAUSES
        if format_ != "2021" or cause[0] not in (steps_environments, prepares)
    ],  # no Python functions were recorded in 2021
)
def test_the_cause_of_idle_time_is_found_in_every_format_of_pytorch(
    step: Write, verdict: str, busy: float, format_: str, tmp_path: Path
) -> None:
    driver = "hip" if format_ == "amd" else "cuda"
    trace = Kineto(format_ == "2021", driver, device=2 if format_ == "amd" else 0)
    steps(trace, step)
    name = "a.pt.trace.json.gz" if format_ == "today" else "a.pt.trace.json"
    found = explained(trace.write(tmp_path / name))
    assert found.verdict == verdict, found.headline
    assert found.busy == {f"gpu:{trace.device}": pytest.approx(busy, abs=0.01)}
    assert found.machine == "Card 9000"


@pytest.mark.parametrize(
    ("outer", "inner", "verdict", "phases"),
    [
        ("env", "rollout", "env-bound", {"env": 0.8}),
        ("learn", "replay", "replay-bound", {"replay": 0.6, "launch": 0.2}),
        ("rollout", "act", "acting-bound", {"act": 0.6}),
    ],
)
@pytest.mark.parametrize("format_", ["today", "2021", "jax"])
def test_marks_of_the_program_decide_the_phase_of_what_the_host_does_in_them(
    outer: str, inner: str, verdict: str, phases: dict[str, float], format_: str, tmp_path: Path
) -> None:
    """Whatever runs there: here waiting for the device, and a data loader. The innermost mark
    counts, and other names are no marks."""
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    if format_ == "jax":
        trace = Framework()
        trace.process(1, "/device:GPU:0 Card 9000")
        for number in range(5):
            t = number * 10 * MS
            trace.event(701, "python", outer, t, 8 * MS)
            trace.event(701, "python", loader, t, 8 * MS)
            trace.event(701, "python", inner, t + MS, 6 * MS)
            trace.event(701, "python", "Await", t + 2 * MS, 4 * MS)
            trace.event(701, "python", "LaunchKernel", t + 8 * MS, 5, correlation=number + 1)
            trace.event(1, "Stream #1", "fusion", t + 8 * MS, 2 * MS, correlation=number + 1)
        found = explained(trace.write(tmp_path))
    else:
        kineto = Kineto(format_ == "2021")

        def step(trace: Kineto) -> None:
            begin = trace.t
            trace.event("user_annotation", outer, begin, 8 * MS)
            trace.event("user_annotation", loader, begin, 8 * MS)
            trace.event("user_annotation", inner, begin + MS, 6 * MS)
            trace.event("cuda_runtime", "cudaStreamSynchronize", begin + 2 * MS, 4 * MS)
            trace.t = begin + 8 * MS
            trace.launch(2 * MS, takes=0.0)
            trace.t = trace.free

        steps(kineto, step, 5)
        found = explained(kineto.write(tmp_path / "a.json"))
    assert found.verdict == verdict, found.headline
    for phase, share in phases.items():
        assert found.phases[phase] == pytest.approx(share, abs=0.03)
        assert found.marked[phase] == pytest.approx(share, abs=0.03)
        assert found.lines[phase].endswith("marked by the program")
    assert f"decided by the program's own marks: {max(phases.values()):.0%}".replace(
        "%", " %"
    ) in " ".join(found.findings[0].evidence)


def test_the_line_of_the_program_is_named(tmp_path: Path) -> None:
    trace = Kineto()
    steps(trace, prepares)
    found = explained(trace.write(tmp_path / "a.json"))
    assert "train.py:40" in found.headline
    assert "train.py:40" in found.lines["other"]


@pytest.mark.parametrize(
    ("main", "library"),
    [("/home/me/train.py", "/opt/agents/replay.py"), ("work/train.py", "agents/replay.py"),
     ("/venv/lib/python3.12/site-packages/work/train.py", "numba/core/replay.py")],
)  # fmt: skip
def test_code_outside_of_the_main_modules_folder_is_a_library(
    main: str, library: str, tmp_path: Path
) -> None:
    """As in programs that are observed, wherever the main module lies."""
    trace = Kineto()
    trace.event("python_function", f"{main}(1): <module>", trace.t, 900 * MS)

    def step(trace: Kineto) -> None:
        trace.event("python_function", f"{main}(40): update", trace.t, 6 * MS)
        trace.python(5 * MS, library, 3, "gather")
        trace.launch(1 * MS)
        trace.wait()

    steps(trace, step)
    found = explained(trace.write(tmp_path / "a.json"))
    assert found.verdict == "host-bound"
    assert "train.py:40" in found.headline


@pytest.mark.parametrize(("env_ms", "tie"), [(6.0, True), (20.0, False)])
def test_a_tie_is_named_where_steps_differ_more_than_the_causes(
    env_ms: float, tie: bool, tmp_path: Path
) -> None:
    trace, draw = Kineto(), random.Random(1)

    def step(trace: Kineto) -> None:
        trace.python(env_ms * draw.uniform(0.5, 1.5) * MS, "gymnasium/core.py", 125, "step")
        load = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        trace.host(6 * draw.uniform(0.5, 1.5) * MS, load, "user_annotation")
        trace.launch(1 * MS)
        trace.wait()

    steps(trace, step, 12)
    found = explained(trace.write(tmp_path / "a.pt.trace.json"))
    first, second = found.findings[:2]
    assert {first.id, second.id} == {"env-bound", "input-bound"}
    assert found.tie == ((first.id, second.id) if tie else ())
    assert found.headline.startswith("a tie: " if tie else "The GPU computes")
    assert "The GPU computes" in found.headline
    assert all((one.interval or (2, 2))[0] < one.share for one in (first, second))


def test_exchanges_that_overlap_with_computing_cost_nothing(tmp_path: Path) -> None:
    trace = Kineto()

    def step(trace: Kineto) -> None:
        begin = trace.free = max(trace.t, trace.free)
        trace.launch(10 * MS)
        trace.free = begin
        trace.launch(9 * MS, "ncclDevKernel_AllReduce", stream=20)
        trace.free += 1 * MS
        trace.t = trace.free

    steps(trace, step)
    found = explained(trace.write(tmp_path / "a.json"))
    assert found.verdict == "healthy"


def test_idle_time_with_work_in_the_queue_is_not_the_hosts_fault(tmp_path: Path) -> None:
    """As in a graph of kernels, or between two streams."""
    trace = Kineto()

    def step(trace: Kineto) -> None:
        for _ in range(10):
            trace.free += 500.0
            trace.launch(500.0)
        trace.t = trace.free - 5 * MS

    steps(trace, step, 6)
    found = explained(trace.write(tmp_path / "a.json"))
    assert found.verdict == "unknown"
    assert "the host is not late" in found.headline


def test_a_start_is_no_steady_state(tmp_path: Path) -> None:
    trace = Kineto()
    begin = trace.t
    trace.launch(1 * MS, takes=50 * MS, call="Malloc")
    trace.launch(1 * MS)
    trace.wait()
    trace.step(0, begin)
    found = explained(trace.write(tmp_path / "a.json"))
    assert (found.verdict, "not its steady state" in found.headline) == ("unknown", True)


def test_without_the_hosts_events_the_cause_is_unknown(tmp_path: Path) -> None:
    trace = Kineto()
    for _ in range(10):
        trace.t += 10 * MS
        trace.launch(1 * MS)
    trace.events = [event for event in trace.events if event["cat"] == "kernel"]
    found = explained(trace.write(tmp_path / "a.json"))
    assert (found.verdict, "what the host does is not" in found.headline) == ("unknown", True)
    assert found.busy == {"gpu:0": pytest.approx(10 / 100, abs=0.01)}


def test_without_a_device_no_busy_share_is_printed(tmp_path: Path) -> None:
    trace = Kineto()
    trace.host(5 * MS, "gloo:all_reduce", "user_annotation")
    found = explained(trace.write(tmp_path / "a.json"))
    assert (found.verdict, found.busy, found.phases) == ("unknown", {}, {})
    assert "no work of a device" in found.headline


def test_categories_that_are_not_understood_are_named(tmp_path: Path) -> None:
    trace = Kineto()
    trace.host(5 * MS, "aten::mul")
    trace.event("mtia_ccp_events", "load", trace.t, 50.0)
    found = explained(trace.write(tmp_path / "a.json"))
    assert (found.verdict, "mtia_ccp_events (1)" in found.headline) == ("unknown", True)


@pytest.mark.parametrize("jitted", [True, False])
def test_jax_is_explained_between_the_profilers_start_and_stop(
    jitted: bool, tmp_path: Path
) -> None:
    trace = Framework()
    trace.process(1, "/device:GPU:0")
    trace.process(2, "/device:GPU:1")
    trace.event(701, "python", "$profiler.py:101 start_trace", 0.0, 900.0)
    t, each = 900.0, (900.0 if jitted else 20.0)
    for number in range(1, 11):
        trace.event(701, "python", "PjitFunction(update)", t, 60.0)
        trace.event(701, "python", "cuLaunchKernel", t + 50.0, 5.0, number)
        trace.event(1, "Stream #16(Kernel)", "fusion", t + 55.0, each, number)
        trace.event(1, "Steps", "7", t, 5000.0)  # a row that is derived from others
        trace.event(1, "XLA Modules", "jit_update", t, 5000.0)
        t += max(60.0, each)
    trace.event(701, "python", "$profiler.py:120 stop_trace", t, 10_000.0)
    found = explained(trace.write(tmp_path))
    assert found.verdict == ("healthy" if jitted else "launch-bound")
    assert found.seconds == pytest.approx((t - 900.0) / 1e6)
    assert list(found.busy) == ["gpu:0"]


def test_a_folder_of_ranks_is_one_report(tmp_path: Path) -> None:
    for rank in range(2):
        trace = Kineto()
        trace.properties["distributedInfo"] = {"rank": rank, "world_size": 2}
        steps(trace, exchanges)
        trace.write(tmp_path / f"rank{rank}.pt.trace.json.gz")
    found = explained(tmp_path)
    assert found.verdict == "communication-bound"
    assert list(found.busy) == ["rank 0 gpu:0", "rank 1 gpu:0"]


@pytest.mark.parametrize("rank", [None, 0])
def test_two_runs_of_one_program_are_no_ranks(rank: int | None, tmp_path: Path) -> None:
    """TensorBoard's handler writes both into its folder, by the number of the process."""
    for process, day in ((111, 1), (222, 2)):
        trace = Kineto()
        if rank is not None:
            trace.properties["distributedInfo"] = {"rank": rank, "world_size": 1}
        steps(trace, loads)
        trace.write(tmp_path / f"host_{process}.162{day}152021000.pt.trace.json.gz")
    with pytest.raises(FlatoutError, match=r"2 recordings that are not of processes of one run.*h"):
        load.load(tmp_path)


def test_a_folder_of_several_recordings_asks_for_one(tmp_path: Path) -> None:
    trace = Framework()
    trace.event(701, "python", "f", 0.0, 1.0)
    trace.write(tmp_path)
    run = next((tmp_path / "plugins" / "profile").iterdir())
    (run.parent / "2026_02_02_00_00_00").mkdir()
    for file in run.iterdir():
        (run.parent / "2026_02_02_00_00_00" / file.name).write_bytes(file.read_bytes())
    with pytest.raises(FlatoutError, match=r"2 recordings.*2026_01_01_00_00_00.*2026_02_02"):
        load.load(tmp_path)


def whole() -> bytes:
    trace = Kineto()
    steps(trace, loads)
    return trace.text().encode()


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "cut.json": lambda data: data[: len(data) // 2],
    "cut.json.gz": lambda data: gzip.compress(data)[:-50],
    "flipped.json.gz": lambda data: gzip.compress(data)[:60] + b"\0\0\0" + gzip.compress(data)[63:],
    "list.json.gz": lambda data: gzip.compress(b"[1, 2]"),
    "text.json.gz": lambda data: gzip.compress(b"hello"),
    "number.json.gz": lambda data: gzip.compress(b'{"traceEvents": 7}'),
    "a.xplane.pb": lambda data: data[:500],
    "objects.json.gz": lambda data: gzip.compress(b'{"traceEvents": [' + b"{}," * 8_000_001),
    "empty.xplane.pb": lambda data: b"",
    "no planes.xplane.pb": lambda data: b"\x22\x04host",
    "no events.json": lambda data: b'{"traceEvents": [{"ph": "M", "name": "process_name"}]}',
    "own.json": lambda data: data.replace(b'"cat": "cuda_runtime"', b'"cat": "flatout"'),
    "deep.json.gz": lambda data: gzip.compress(b'{"traceEvents": ' + b"[" * 100_000),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_one_sentence(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(DAMAGED[name](whole()))
    with pytest.raises(FlatoutError) as caught:
        load.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_too_large_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "LARGEST", 1 << 20)
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"0" * (1 << 21)))
    with pytest.raises(FlatoutError, match="record fewer steps"):
        load.load(path)


def test_events_that_would_take_too_much_memory_are_not_built() -> None:
    data = b'{"traceEvents": [' + b"{}," * 5_200_000 + b"{}]}"
    with pytest.raises(ValueError, match=r"5,200,002 objects .* more than 2,048 MiB of memory"):
        chrome.read(data)


def test_events_of_any_format_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "MOST_EVENTS", 5)
    with pytest.raises(ValueError, match="more than 5 events"):
        chrome.read(whole())
    found = collecting.Collected(1e-6)
    for step in range(5):
        found.on_host(("", ""), Kind.RANGE, f"ProfilerStep#{step}", step, step + 1.0, 0)
    with pytest.raises(ValueError, match="more than 5 events"):
        found.on_host(("", ""), Kind.RANGE, "ProfilerStep#5", 5.0, 6.0, 0)


@pytest.mark.parametrize("args", ["[%s]", '{"name": [%s]}', '{"correlation": [%s], "x": [%s]}'])
def test_nested_arguments_are_not_built(args: str) -> None:
    lists = ",".join(["[]"] * 200_000)
    event = '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": %s}'
    text = '{"traceEvents": [%s]}' % (event % args.replace("%s", lists))
    data = text.encode()
    tracemalloc.start()
    try:
        trace = chrome.read(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(trace.devices[0].events) == 1
    assert peak < 4e6, "the lists alone would take 11 MB"


def test_values_that_are_no_json_are_read_as_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(whole().replace(b'"correlation": 1,', b'"occupancy": nan, "correlation": 1,'))
    assert explained(path).verdict == "input-bound"


Spans = list[tuple[float, float]]
SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


def cells(spans: Any) -> set[int]:
    return {cell for begin, end in spans for cell in range(int(begin), int(end))}


def ordered(spans: Any) -> np.ndarray:
    """Disjoint intervals in order."""
    pairs = np.array(sorted((a, a + b) for a, b in spans), np.float64).reshape(-1, 2)
    return union(pairs[:, 0], pairs[:, 1])


@given(SPANS, SPANS)
def test_only_pieces_that_meet_idle_time_are_divided(one: Any, other: Any) -> None:
    first, second = ordered(one), ordered(other)
    met = [bool(cells([piece]) & cells(second)) for piece in first]
    assert meeting(first, second).tolist() == met


@given(SPANS, SPANS)
def test_intervals_are_sets_of_times(one: Any, other: Any) -> None:
    first, second = ordered(one), ordered(other)
    a, b = cells((x, x + y) for x, y in one), cells((x, x + y) for x, y in other)
    assert length(first) == len(a)
    assert cells(overlap(first, second)) == a & b
    assert cells(without(first, second)) == a - b
    for found in (first, overlap(first, second), without(first, second)):
        assert (found[:, 1] > found[:, 0]).all()
        assert (found[1:, 0] > found[:-1, 1]).all()


def test_the_command_explains_a_trace(flatout: Callable[..., Any], tmp_path: Path) -> None:
    trace = Kineto()
    steps(trace, loads)
    path = trace.write(tmp_path / "a.pt.trace.json.gz")
    said, page = tmp_path / "said.json", tmp_path / "page.html"
    result = flatout("explain", path, "--json", said, "--html", page)
    assert result.code == 0
    assert "input-bound" in result.out
    assert "44.4 % busy" in " ".join(result.out.split())
    assert json.loads(said.read_text())["busy"] == {"gpu:0": pytest.approx(8 / 18, abs=0.01)}
    assert "p-input" in page.read_text()


@pytest.mark.slow
def test_long_names_and_many_rows_take_no_longer(tmp_path: Path) -> None:
    """Names that patterns could match in many ways, devices and threads by the thousand."""
    trace = Kineto()
    for name in ("ProfilerStep" + " " * 60_000 + "x", "cu" * 60_000, "x.py(" + "1" * 5000 + "): f"):
        trace.host(1 * MS, name)
    for device in range(200):
        trace.device = device
        trace.launch(1 * MS)
        trace.events[-2]["tid"] = device
    assert len(explained(trace.write(tmp_path / "a.json")).busy) == 200
    for device in range(200, 300):
        trace.device = device
        trace.launch(1 * MS)
    with pytest.raises(FlatoutError, match="300 devices, and at most 256"):
        load.load(trace.write(tmp_path / "a.json"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x0a\x09\x12\x03/de", "cut off"),
        (b"\x0a" + b"\xff" * 12, "number without an end"),
        (b"\x08\x05", "number in place of a message"),
        (b"\x0b", "field of kind 3"),
        (b"\x0a\x0a\x22\x08\x08\x01\x12\x04\x12\x02\xff\xff", "no events"),  # a name, not UTF-8
    ],
)
def test_damaged_planes_are_one_sentence(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(data)
    with pytest.raises(FlatoutError, match=reason):
        load.load(path)


def test_a_pipe_is_not_waited_for(flatout: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("a.json", "a.json.gz", "a.xplane.pb"):
        os.mkfifo(tmp_path / name)
        result = flatout("explain", tmp_path / name)
        assert result.code != 0
        assert "ordinary file" in result.message


def test_folders_without_traces_are_none(flatout: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text("{}")
    result = flatout("explain", tmp_path)
    assert result.code != 0
    assert "is not a run folder" in result.message


def test_outputs_never_replace_what_is_explained(
    flatout: Callable[..., Any], tmp_path: Path
) -> None:
    trace = Kineto()
    steps(trace, loads)
    path = trace.write(tmp_path / "rank0.json")
    before = path.read_bytes()
    for flags in (("--json", path), ("--html", path)):
        result = flatout("explain", tmp_path, *flags)
        assert (result.code, "is a file of" in result.message) == (2, True)
    for flags in (("--save", tmp_path / "s.json"), ("--try",), ("--measure",)):
        assert flatout("explain", tmp_path, *flags).code == 2
    assert path.read_bytes() == before
