"""The kernel's counters of quotas and full memory, in made-up trees of /proc and /sys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flatout_explain.documents import convert
from flatout_explain.hardware.counters import Counters, killed_by_oom, page_fault_seconds
from flatout_explain.hardware.monitor import Monitor, MonitorSample, merged
from flatout_explain.hardware.processes import Faults, Reading
from tests.hardware.test_cores import V2, version_2, write
from tests.hardware.test_monitor import NoGpus, Tree

VERSION_2 = {
    f"{V2}/job/step/cpu.stat": "usage_usec 10\nnr_throttled 3\nthrottled_usec 2000000\n",
    f"{V2}/job/cpu.stat": "usage_usec 10\nnr_throttled 5\nthrottled_usec 3000000\n",
    f"{V2}/job/step/memory.pressure": "some avg10=1.00 total=5000000\nfull avg10=0.00 total=7\n",
    f"{V2}/job/step/memory.max": "max\n",
    f"{V2}/job/memory.max": "536870912\n",
    f"{V2}/job/step/memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 0\n",
}
VERSION_1 = {
    "/sys/fs/cgroup/cpu/job/step/cpu.stat": "nr_throttled 3\nthrottled_time 2000000000\n",
    "/sys/fs/cgroup/cpu/job/cpu.stat": "nr_throttled 5\nthrottled_time 3000000000\n",
    "/proc/pressure/memory": "some avg10=1.00 total=5000000\nfull avg10=0.00 total=7\n",
    "/sys/fs/cgroup/memory/job/step/memory.limit_in_bytes": "9223372036854771712\n",
    "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": "536870912\n",
    "/sys/fs/cgroup/memory/job/step/memory.oom_control": "under_oom 0\noom_kill 2\n",
}
MOUNTED_1 = [
    f"/ /sys/fs/cgroup/{name} rw,relatime - cgroup cgroup rw,{name}" for name in ("cpu", "memory")
]


@pytest.mark.parametrize(
    ("groups", "mounts", "files"),
    [
        ("0::/job/step\n", [version_2()], VERSION_2),
        ("5:memory:/job/step\n4:cpu:/job/step\n", MOUNTED_1, VERSION_1),
    ],
    ids=["version 2", "version 1"],
)
def test_counters_of_nested_groups(
    tmp_path: Path, groups: str, mounts: list[str], files: dict[str, str]
) -> None:
    write(tmp_path, "/proc/self/cgroup", groups)
    lines = [f"3{n} 25 0:3{n} {mount}\n" for n, mount in enumerate(mounts)]
    write(tmp_path, "/proc/self/mountinfo", "".join(lines))
    write(tmp_path, "/proc/vmstat", "pswpin 3\npswpout 4\nthp_fault_alloc 5\noom_kill 9\n")
    for path, text in files.items():
        write(tmp_path, path, text)
    counters = Counters(root=str(tmp_path))
    assert counters.read() == {"throttled": 3.0, "stalled": 5.0, "swapped": 7, "huge": 5}
    assert counters.oom_kills() == (2, 9)
    assert counters.memory_limit() == 512 << 20


def test_a_system_without_such_files_counts_nothing(tmp_path: Path) -> None:
    counters = Counters(root=str(tmp_path))
    assert (counters.read(), counters.oom_kills(), counters.memory_limit()) == ({}, (0, 0), None)
    assert killed_by_oom(7, 0.0, str(tmp_path / "kmsg")) is None


@pytest.mark.parametrize(
    ("pid", "since", "found"), [(4711, 100.0, True), (471, 100.0, False), (4711, 300.0, False)]
)
def test_the_kernels_log_names_the_process_that_it_ended(
    tmp_path: Path, pid: int, since: float, found: bool
) -> None:
    """A line of an earlier process with the same number does not count."""
    log = tmp_path / "kmsg"
    log.write_text(
        "3,10,200000000,-;Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB\n"
    )
    assert killed_by_oom(pid, since, str(log)) is found


def test_a_fetched_page_takes_time() -> None:
    found = page_fault_seconds()
    if os.path.exists("/proc/self/stat"):
        assert found is not None
        assert 0.0 < found[0] <= found[1] < 1.0


def test_page_faults_are_rates_of_the_processes_with_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy, quiet, new = (1, 10), (2, 11), (3, 12)
    tree = Tree(
        Reading(1.0, {busy: 1.0, quiet: 0.0},
                faults={busy: Faults(1000, 900, 0, 1.0), quiet: Faults(50, 50, 0, 0.1)}),
        Reading(2.0, {busy: 2.0, quiet: 0.0, new: 0.0},
                faults={busy: Faults(9000, 4900, 6, 1.5), quiet: Faults(60, 60, 0, 0.1),
                        new: Faults(9999, 9999, 9, 0.0)}),
    )  # fmt: skip
    now = iter([100.0, 102.0])
    monkeypatch.setattr("flatout_explain.hardware.monitor.time.perf_counter", lambda: next(now))
    monkeypatch.setattr("flatout_explain.hardware.monitor.Others", lambda pid: None)
    sample = Monitor(os.getpid(), cores=4, tree=tree, gpus=NoGpus()).sample()
    assert sample.faults == {1: Faults(4000.0, 2000.0, 3.0, 0.25)}
    assert convert(sample.as_json(), MonitorSample).faults == sample.faults
    other = MonitorSample(1.0, sample.seconds, 4, 0.0)
    assert merged([sample, other]).faults == {1: Faults(2000.0, 1000.0, 1.5, 0.125)}
