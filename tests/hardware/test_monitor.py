"""What a program uses of the machine: CPU, memory and threads of a process tree."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.storage.span_records import read_samples
from flatout_explain.documents import convert
from flatout_explain.hardware import monitor as module
from flatout_explain.hardware.gpus import Gpus, GpuSample
from flatout_explain.hardware.monitor import Monitor, MonitorSample, Recorder, Sampler, merged
from flatout_explain.hardware.processes import LinuxTree, PortableTree, Reading, open_tree
from tests.kills import wait_for

SPIN = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SPIN!r}])
print(child.pid, flush=True)
child.wait()
"""


@contextmanager
def family() -> Iterator[tuple[int, int]]:
    """A process that sleeps, and its child that computes."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        yield process.pid, child
    finally:
        os.kill(child, 9)
        process.wait(120)
        process.stdout.close()


@pytest.mark.parametrize("kind", [LinuxTree, PortableTree])
def test_a_tree_is_its_descendants_too(kind: Any) -> None:
    with family() as (root, child):
        tree = kind(root)
        before = tree.read()
        time.sleep(0.5)
        if kind is LinuxTree:
            tree._due = 0.0
        after = tree.read()
        assert {pid for pid, _ in after.processes} == {root, child}
        (key,) = [key for key in after.processes if key[0] == child]
        assert after.processes[key] > before.processes.get(key, 0.0)
        assert after.total_s > before.total_s
        assert after.rss_mb is not None
        assert after.rss_mb > 1
        assert after.threads >= 2
        assert after.switches is not None
    assert kind(root).read().processes == {}, "nothing is left of it"


def test_the_portable_way_is_taken_where_the_kernel_has_no_such_files(tmp_path: Path) -> None:
    assert isinstance(open_tree(os.getpid(), tmp_path), PortableTree)


class Tree(LinuxTree):
    """A tree whose readings are told."""

    def __init__(self, *readings: Reading) -> None:
        self.readings = list(readings)

    def read(self) -> Reading:
        return self.readings.pop(0)


class NoGpus(Gpus):
    def __init__(self) -> None:
        self.notes = ["No NVIDIA GPU was found (no)."]

    def read(self, pids: Any) -> tuple[GpuSample, ...]:
        return ()

    def close(self) -> None: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(t=100.0)
    monkeypatch.setattr(module.time, "perf_counter", lambda: now.t)
    return now


def test_cpu_is_a_share_of_all_cores_and_counted_once(clock: SimpleNamespace) -> None:
    """Two processes that compute on four cores for a second use half of them."""
    one, other, late = (1, 10.0), (2, 11.0), (3, 50.0)
    tree = Tree(
        Reading(7.0, {one: 5.0, other: 2.0}),
        Reading(9.0, {one: 6.0, other: 3.0}, threads=5),
        # The second has ended: its parent has inherited its time. A third one is new.
        Reading(9.0 + 2.5, {one: 7.0, late: 0.5}),
        Reading(),
    )
    monitor = Monitor(os.getpid(), cores=1, tree=tree, gpus=NoGpus())
    monitor.cores = 4
    clock.t += 1.0
    sample = monitor.sample()
    assert sample.cpu == 0.5
    assert sample.processes == {1: 1.0, 2: 1.0}
    assert sample.threads == 5
    assert sample.notes == ("No NVIDIA GPU was found (no).",)
    clock.t += 2.0
    sample = monitor.sample()
    assert sample.cpu == round(2.5 / 2 / 4, 4)
    assert sample.processes == {1: 0.5, 3: 0.25}
    assert sample.notes == (), "said once"
    clock.t += 1.0
    sample = monitor.sample()
    assert (sample.cpu, sample.rss_mb) == (0.0, None), "it has ended"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="it needs affinities")
def test_the_cores_are_those_on_which_the_busy_threads_may_run(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a launcher (taskset, numactl) sets them after the start. A shell around it may run
    everywhere, and threads that are pinned to a core each have all of these together."""
    shell, one, other = 1, os.getpid(), 3
    cpus = {shell: {*range(64)}, one: {4}, other: {5}}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(64)})
    tree = Tree(
        Reading(0.0, {(shell, 1.0): 0.0}, by_thread={shell: 0.0}),
        Reading(1.0, {(one, 1.0): 1.0}, by_thread={shell: 0.01, one: 0.5, other: 0.4, 99: 0.4}),
        Reading(2.0, {(one, 1.0): 2.0}, by_thread={shell: 0.01, one: 0.9, other: 0.9}),
    )
    monitor = Monitor(shell, tree=tree, gpus=NoGpus())

    def affinity(thread: int) -> set[int]:
        if thread not in cpus:
            raise ProcessLookupError
        return cpus[thread]

    monkeypatch.setattr(os, "sched_getaffinity", affinity)
    monkeypatch.setattr(module, "cpu_seconds", lambda cpus, fields: 10.0 * len(cpus))
    clock.t += 1.0
    sample = monitor.sample()
    assert (monitor.cores, sample.cores, sample.cpu) == (2, 2, 0.5)
    assert sample.cpu_all is None, "it was counted on other CPUs"
    clock.t += 1.0
    assert monitor.sample().cpu_all == 0.5


def test_processes_that_a_main_thread_starts_are_found_at_once(tmp_path: Path) -> None:
    """Listing all threads may be too dear to be done often."""

    def process(pid: int, *children: int) -> None:
        folder = tmp_path / str(pid) / "task" / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        fields = ["S", *["0"] * 10, str(100 * pid), *["0"] * 7, str(pid), *["0"] * 20]
        for file in (folder / "stat", tmp_path / str(pid) / "stat"):
            file.write_text(f"{pid} (a program) {' '.join(fields)}")
        (folder / "children").write_text(" ".join(map(str, children)))

    process(7)
    tree = LinuxTree(7, tmp_path)
    assert {pid for pid, _ in tree.read().processes} == {7}
    tree._due = math.inf
    process(7, 8, 9)
    process(8, 10)
    process(9)
    process(10)
    reading = tree.read()
    assert {pid for pid, _ in reading.processes} == {7, 8, 9, 10}
    assert reading.runnable is None, "threads are not"
    shutil.rmtree(tmp_path / "9")
    assert {pid for pid, _ in tree.read().processes} == {7, 8, 10}


def test_threads_are_looked_at_more_rarely(clock: SimpleNamespace) -> None:
    key = (1, 10.0)
    tree = Tree(
        Reading(0.0, {key: 0.0}, runnable=1, by_thread={5: 0.0, 6: 0.0}, switches=(100, 10)),
        Reading(1.0, {key: 1.0}),
        Reading(2.0, {key: 2.0}, runnable=3, by_thread={5: 0.5, 6: 1.5}, switches=(300, 14)),
    )
    monitor = Monitor(os.getpid(), cores=2, tree=tree, gpus=NoGpus())
    clock.t += 1.0
    assert monitor.sample().runnable is None
    clock.t += 1.0
    sample = monitor.sample()
    assert (sample.runnable, sample.busiest) == (3.0, 0.75), "since they were last looked at"
    assert (sample.voluntary, sample.involuntary) == (100.0, 2.0)


def test_a_recording_is_readable_at_any_time(tmp_path: Path) -> None:
    path = tmp_path / "devices.jsonl"
    recorder, sampler = Recorder(path), Sampler(Monitor(os.getpid(), 0.02))
    sampler.add(recorder)
    deadline = time.monotonic() + 120
    while len(read_samples(path)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert recorder.latest is not None
    sampler.remove(recorder)
    sampler.close()
    whole = read_samples(path)
    assert list(whole) == list(recorder.samples)
    assert all(0 <= sample.cpu <= 1 for sample in whole)
    assert [sample.t for sample in whole] == sorted(sample.t for sample in whole)
    with open(path, "ab") as file:
        file.write(b'{"t": 1.0, "half')
    assert len(read_samples(path)) == len(whole)


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    recorder, sampler = Recorder(tmp_path / "no" / "file"), Sampler(Monitor(os.getpid(), 0.01))
    sampler.add(recorder)
    time.sleep(0.05)
    sampler.remove(recorder)
    sampler.close()
    assert recorder.samples


def test_many_runs_of_a_process_share_one_sampler(tmp_path: Path) -> None:
    """Hundreds of threads that read a GPU's counters crash its driver."""
    sampler, paths = Sampler(Monitor(os.getpid(), 0.2)), [tmp_path / f"{i}" for i in range(40)]
    before = {*threading.enumerate()}
    recorders = [Recorder(path, clock=lambda: 7.0) for path in paths]
    for recorder in recorders:
        sampler.add(recorder)
    assert {*threading.enumerate()} - before == {sampler}
    early = recorders.pop(0)
    sampler.remove(early)
    taken = len(early.samples)
    assert taken, "a run that ends at once has a sample, too"
    wait_for(lambda: len(recorders[0].samples) > 2)
    assert len(early.samples) == taken, "none comes after its end"
    sampler._last.set()  # no sample comes between two ends
    sampler.join()
    for recorder in recorders:
        sampler.remove(recorder)
    sampler.close()
    assert all(sample.t == 7.0 for path in paths for sample in read_samples(path))
    assert len({len(read_samples(path)) for path in paths[1:-1]}) == 1
    assert not sampler.is_alive()


shares = st.floats(0, 1).map(lambda x: round(x, 4))
cards = st.builds(
    GpuSample, st.integers(0, 3), busy=st.none() | shares, full=st.none() | shares,
    used_mb=st.integers(0, 1000), total_mb=st.just(1000), ours=st.just((7,)),
)  # fmt: skip
samples = st.builds(
    MonitorSample, t=st.floats(0, 1e5), seconds=st.floats(0.1, 10), cores=st.just(4), cpu=shares,
    cpu_all=st.none() | shares, rss_mb=st.none() | shares,
    processes=st.dictionaries(st.integers(1, 9), shares.map(lambda x: round(x, 3)), max_size=3),
    runnable=st.none() | shares, gpus=st.lists(cards, max_size=2).map(tuple),
    notes=st.lists(st.text(max_size=5), max_size=2).map(tuple),
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(samples)
def test_samples_survive_json(sample: MonitorSample) -> None:
    assert convert(json.loads(json.dumps(sample.as_json())), MonitorSample) == sample


@given(
    samples.map(lambda sample: sample.as_json()),
    st.sampled_from(["t", "cpu", "cpu_all", "rss_mb", "threads", "processes", "others", "gpus"]),
    st.sampled_from(["x", [None], {"1": "x"}, {"1": math.nan}, math.nan, math.inf, [{"index": 0,
                     "busy": "x"}], [{"index": 0, "used_mb": math.inf}], 10**400]),
)  # fmt: skip
def test_damaged_samples_are_skipped(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any], name: str, damage: Any
) -> None:
    path = tmp_path_factory.mktemp("recording") / "devices.jsonl"
    path.write_text(f"{json.dumps(values)}\n{json.dumps(values | {name: damage})}\n")
    assert read_samples(path) == [convert(values, MonitorSample)]


@settings(deadline=None, max_examples=60)
@given(st.lists(samples, min_size=1, max_size=5))
def test_merged_samples_are_their_means(many: list[MonitorSample]) -> None:
    one = merged(many)
    assert one.t == many[-1].t
    low, high = min(s.cpu for s in many), max(s.cpu for s in many)
    assert low - 1e-3 <= one.cpu <= high + 1e-3
    assert one.seconds == pytest.approx(sum(s.seconds for s in many), abs=1e-3)
    known = [s.cpu_all for s in many if s.cpu_all is not None]
    assert (one.cpu_all is None) == (not known)
    assert one.notes == tuple(note for s in many for note in s.notes)


def test_merged_samples_hold_what_other_programs_used_in_all_of_them() -> None:
    crowded = MonitorSample(t=1.0, seconds=1.0, cores=4, cpu=0.5, others={"make": 2.0, "gcc": 1.0})
    calm = MonitorSample(t=4.0, seconds=3.0, cores=4, cpu=0.5, others={"gcc": 1.0})
    assert merged([crowded, calm]).others == {"make": 0.5, "gcc": 1.0}


class Nvml:
    """Stands for the driver's library: one card that says how full it is, one that does not."""

    NVMLError = RuntimeError
    NVML_GPM_METRICS_GET_VERSION, NVML_GPM_METRIC_SM_UTIL = 1, 2

    def __init__(self, **broken: bool) -> None:
        self.broken, self.shut, self.pids = broken, 0, (7, 8)

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            if self.broken.get(name):
                raise RuntimeError("Insufficient Permissions")
            handle = arguments[0] if arguments else None
            values: dict[str, Any] = {
                "nvmlDeviceGetCount": 2,
                "nvmlDeviceGetHandleByIndex": handle,
                "nvmlDeviceGetUUID": f"GPU-{handle}",
                "nvmlDeviceGetName": f"card {handle}",
                "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=40),
                "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=512 << 20, total=2048 << 20),
                "nvmlDeviceGetComputeRunningProcesses": [
                    SimpleNamespace(pid=self.pids[0], usedGpuMemory=300 << 20),
                    SimpleNamespace(pid=self.pids[1], usedGpuMemory=None),
                ],
                "nvmlGpmQueryDeviceSupport": SimpleNamespace(isSupportedDevice=handle == 0),
                "nvmlGpmSampleAlloc": object(),
                "c_nvmlGpmMetricsGet_t": SimpleNamespace(metrics=[SimpleNamespace(value=25.0)]),
            }
            self.shut += name == "nvmlShutdown"
            return values.get(name)

        return call


def test_busy_and_full_are_two_things(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = Gpus()
    gpus.read(())
    first, second = gpus.read({7})
    assert (first.busy, first.full, second.busy, second.full) == (0.4, 0.25, 0.4, None)
    assert (first.used_mb, first.total_mb, first.ours_mb) == (512, 2048, 300)
    assert (first.ours, first.others) == ((7,), 1)
    assert gpus.read({7, 8})[0].owners == ()
    me = psutil.Process().name()
    monkeypatch.setattr(nvml, "pids", (7, os.getpid()))
    assert gpus.read({7})[0].owners == (me,)
    gpus.close()
    assert nvml.shut == 1


def test_what_the_driver_refuses_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"nvmlGpmSampleGet": True, "nvmlDeviceGetComputeRunningProcesses": True}
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(**refused))  # type: ignore[arg-type]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    gpus = Gpus()
    (card,) = gpus.read({7})
    assert (card.busy, card.full, card.ours) == (0.4, None, ())
    assert any("Insufficient Permissions" in note for note in gpus.notes)
    gpus.close()


def test_without_a_driver_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(nvmlInit=True))  # type: ignore[arg-type]
    gpus = Gpus()
    assert gpus.read({1}) == ()
    assert len(gpus.notes) == 1
    gpus.close()
