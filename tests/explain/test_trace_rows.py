"""Events, threads and files of traces: compiling or calling, one thread or two, one process or
several."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flatout_explain.trace import chrome, load, xplane
from flatout_explain.trace.diagnose import diagnose
from flatout_explain.trace.events import Kind
from flatout_explain.trace.names import part
from tests.explain.recorded_traces import MS, Framework, Kineto


@pytest.mark.parametrize(
    ("kind", "name", "compiles"),
    [
        (Kind.PYTHON, "torch/_dynamo/eval_frame.py(632): _fn", False),
        (Kind.PYTHON, "torch/_dynamo/utils.py(99): call_size", False),
        (Kind.PYTHON, "torch/_inductor/output_code.py(466): __call__", False),
        (Kind.PYTHON, "torch/_inductor/compile_fx.py(1600): run", False),
        (Kind.PYTHON, "torch/_inductor/runtime/triton_heuristics.py(1000): run", False),
        (
            Kind.PYTHON,
            "/venv/lib/python3.12/site-packages/torch/_inductor/utils.py(2128): run",
            False,
        ),
        (Kind.PYTHON, "torch/_dynamo/convert_frame.py(1164): _compile", True),
        (Kind.PYTHON, "torch/_dynamo/convert_frame.py(715): _compile_inner", True),
        (Kind.PYTHON, "torch/_inductor/compile_fx.py(1552): compile_fx_inner", True),
        (
            Kind.PYTHON,
            "torch/_inductor/runtime/triton_heuristics.py(700): autotune_to_one_config",
            True,
        ),
        (
            Kind.PYTHON,
            "/venv/lib/python3.12/site-packages/torch/_inductor/compile_fx.py(9): compile_fx",
            True,
        ),
        (Kind.OPERATION, "TorchDynamo Cache Lookup", False),
        (Kind.OPERATION, "Torch-Compiled Region: 0/0", False),
        (Kind.OPERATION, "_compile.compile_inner (dynamo_timed)", True),
        (Kind.OPERATION, "compile_fx.<locals>.fw_compiler_base (dynamo_timed)", True),
    ],
)
def test_calls_of_a_compiled_model_are_no_compiling(kind: Kind, name: str, compiles: bool) -> None:
    assert (part(name, kind) == "compile") is compiles


# --- Threads ----------------------------------------------------------------------------------


def test_threads_of_two_processes_with_one_number_are_two() -> None:
    trace = Kineto()
    for pid in (10, 11):
        trace.event("cpu_op", "aten::mul", trace.t, 10.0, pid=pid, tid=7)
    found = chrome.read(trace.text().encode())
    assert [row.name for row in found.threads] == ["thread 7", "thread 7"]


def test_a_number_and_its_text_are_one_thread() -> None:
    trace = Kineto()
    for tid in (7, "7"):
        trace.event("cpu_op", "aten::mul", trace.t, 10.0, pid=tid, tid=tid)
    assert len(chrome.read(trace.text().encode()).threads) == 1


def test_threads_of_one_name_are_told_apart_by_their_numbers() -> None:
    """In Chrome's format; the first begins and ends around the second."""
    trace = Framework()
    for tid in (1, 2):
        named = {"ph": "M", "name": "thread_name", "pid": 701, "tid": tid}
        trace.events += [
            named | {"args": {"name": "python3"}},
            {"ph": "X", "pid": 701, "tid": tid, "ts": tid, "dur": 10 - 2 * tid, "name": "f"},
        ]
    found = chrome.read(json.dumps({"traceEvents": trace.events}).encode())
    assert [(row.name, len(row.events)) for row in found.threads] == [("python3", 1)] * 2


def field(number: int, value: int | bytes) -> bytes:
    """A field of a protocol buffer, of a number below 128 or of fewer than 128 bytes."""
    if isinstance(value, int):
        return bytes((number << 3, value))
    return bytes((number << 3 | 2, len(value))) + value


@pytest.mark.parametrize(("ids", "threads"), [((1, 2), 2), ((1, 1), 1)])
def test_lines_of_one_name_are_told_apart_by_their_numbers(
    ids: tuple[int, ...], threads: int, tmp_path: Path
) -> None:
    event = field(4, field(1, 1) + field(2, 5) + field(3, 100))
    lines = [field(3, field(1, each) + field(2, b"python3") + event) for each in ids]
    names = field(4, field(1, 1) + field(2, field(1, 1) + field(2, b"f")))
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(field(1, field(2, b"/host:CPU") + names + b"".join(lines)))
    found = xplane.read(path)
    assert [row.name for row in found.threads] == ["python3"] * threads
    assert sum(len(row.events) for row in found.threads) == 2


# --- Files ------------------------------------------------------------------------------------


def test_of_the_cycles_of_a_schedule_the_newest_is_read(tmp_path: Path) -> None:
    """`tensorboard_trace_handler` writes a file in each cycle: worker, time, ending."""
    for worker, time, kernels in (
        ("host_71", 999_999_000_000, 1), ("host_71", 1_000_000_009_000, 2),
        ("host_71", 999_990_000_000, 3), ("host_72", 1_000_000_004_000, 4),
    ):  # fmt: skip
        trace = Kineto()
        for _ in range(kernels):
            trace.launch(1 * MS)
        trace.write(tmp_path / f"{worker}.{time}.pt.trace.json")
    traces = load.load(tmp_path)
    assert [len(trace.devices[0].events) for trace in traces] == [2, 4]
    found = diagnose(traces, "")
    assert list(found.busy) == ["rank 0 gpu:0", "rank 1 gpu:0"]
    assert "newest recording was read: 2 earlier recordings were not." in found.notes[0]


def test_one_process_with_several_cycles_is_no_rank(tmp_path: Path) -> None:
    for time in (1_700_000_000_123_456_789, 1_700_000_009_123_456_789):
        trace = Kineto()
        trace.launch(1 * MS)
        trace.write(tmp_path / f"host_71.{time}.pt.trace.json.gz")
    found = diagnose(load.load(tmp_path), "")
    assert list(found.busy) == ["gpu:0"]
    assert "1 earlier recording was not." in found.notes[0]


def test_a_short_number_is_a_rank_and_no_time(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace = Kineto()
        trace.launch(1 * MS)
        trace.write(tmp_path / f"rank.{rank}.pt.trace.json")
    assert len(load.load(tmp_path)) == 2
