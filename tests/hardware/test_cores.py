"""How many cores a process may use: affinity and quotas, in made-up trees of /proc and /sys."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flatout
import flatout_explain
from flatout_explain.hardware.cores import physical_cores, share_of_all, usable_cores, usable_cpus

V1 = "/sys/fs/cgroup/cpu,cpuacct"
V2 = "/sys/fs/cgroup"


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 64 CPUs, on all of which every process may run."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)


def write(root: Path, path: str, text: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def cores(root: Path, groups: str, mounts: list[str], quotas: dict[str, str], pid: int = 0) -> int:
    """Count the cores in a tree: the groups of a process, what is mounted, and quotas by folder."""
    write(root, f"/proc/{pid or 'self'}/cgroup", groups)
    lines = [f"3{n} 25 0:3{n} {mount}\n" for n, mount in enumerate(mounts)]
    write(root, "/proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda rw\n" + "".join(lines))
    for folder, quota in quotas.items():
        if folder.startswith(V1) and " " in quota:
            for name, number in zip(("quota", "period"), quota.split(), strict=True):
                write(root, f"{folder}/cpu.cfs_{name}_us", f"{number}\n")
        else:
            write(root, f"{folder}/cpu.max", f"{quota}\n")
    return usable_cores(pid, str(root))


def version_1(top: str = "/", point: str = V1) -> str:
    return f"{top} {point} rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct"


def version_2(top: str = "/", point: str = V2) -> str:
    return f"{top} {point} rw,relatime - cgroup2 cgroup2 rw,nsdelegate"


@pytest.mark.parametrize(
    ("groups", "mounts", "quotas", "count"),
    [
        ("0::/", [version_2()], {V2: "300000 100000"}, 3),
        ("0::/", [version_2()], {V2: "max 100000"}, 64),
        ("0::/", [version_2()], {V2: "250000 100000"}, 2),  # rounded down
        ("0::/", [version_2()], {V2: "50000 100000"}, 1),
        # A user's slice has the quota, and not the process's own group or the topmost one.
        ("0::/a.slice/b/c", [version_2()], {f"{V2}/a.slice": "400000 50000"}, 8),
        ("0::/a/b", [version_2()], {f"{V2}/a/b": "500000 100000", f"{V2}/a": "700000 100000"}, 5),
        ("0::/a/b", [version_2()], {f"{V2}/a": "500000 100000", f"{V2}/a/b": "700000 100000"}, 5),
        ("0::/a", [version_2()], {f"{V2}/b": "100000 100000"}, 64),
        ("4:cpu,cpuacct:/\n1:name=systemd:/x", [version_1()], {V1: "-1 100000"}, 64),
        ("4:cpu,cpuacct:/job/7", [version_1()], {f"{V1}/job": "600000 100000"}, 6),
        # Docker shows the host's name of the group, and mounts the group itself.
        ("4:cpu,cpuacct:/docker/ab", [version_1("/docker/ab")], {V1: "150000 50000"}, 3),
        ("4:cpu,cpuacct:/docker/ab", [version_1("/docker/other")], {V1: "150000 50000"}, 3),
        # Another container's group, mounted as well, is not this process's.
        ("0::/me", [version_2("/you", "/mnt/you"), version_2()],
         {"/mnt/you": "100000 100000", f"{V2}/me": "900000 100000"}, 9),
        # Both versions at once: version 2 without the controller.
        ("4:cpu,cpuacct:/a\n0::/b", [version_1(), version_2(point="/sys/fs/cgroup/unified")],
         {f"{V1}/a": "200000 100000"}, 2),
        ("0::/a b/münchen", [version_2(point=r"/sys/fs/my\040groups")],
         {"/sys/fs/my groups/a b/münchen": "700000 100000"}, 7),
        ("0::/../sibling", [version_2()], {f"{V2}/sibling": "100000 100000"}, 64),
        ("nonsense\n0:", ["/ / -"], {V2: "0 0"}, 64),
    ],
)  # fmt: skip
def test_the_smallest_quota_from_the_own_group_to_the_topmost_counts(
    tmp_path: Path, many: None, groups: str, mounts: list[str], quotas: dict[str, str], count: int
) -> None:
    assert cores(tmp_path, f"{groups}\n", mounts, quotas) == count


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.none() | st.integers(1, 200), min_size=1, max_size=6), st.booleans(),
    st.integers(0, 5),
)  # fmt: skip
def test_nested_quotas(
    tmp_path_factory: pytest.TempPathFactory, tenths: list[int | None], old: bool, hidden: int
) -> None:
    """Each group may use at most its quota and those above it, of which a container sees some."""
    root, base = tmp_path_factory.mktemp("tree"), V1 if old else V2
    names = [f"g{level}" for level in range(1, len(tenths))]
    hidden = min(hidden, len(names))
    top = "/" + "/".join(names[:hidden])
    own = "/" + "/".join(names)
    quotas = dict[str, str]()
    for level in range(hidden, len(tenths)):
        quota = tenths[level]
        text = f"{'-1' if old else 'max'} 100000" if quota is None else f"{quota * 10_000} 100000"
        quotas["/".join([base, *names[hidden:level]])] = text
    seen = [quota for quota in tenths[hidden:] if quota is not None]
    allowed = len(usable_cpus())
    found = cores(
        root, f"{'2:cpu,cpuacct' if old else '0:'}:{own}\n",
        [version_1(top) if old else version_2(top)], quotas,
    )  # fmt: skip
    assert found == max(1, min([allowed * 10, *seen]) // 10)


def test_another_process_counts_by_its_own_group_and_affinity(tmp_path: Path, many: None) -> None:
    cores(tmp_path, "0::/\n", [version_2()], {V2: "max 100000"})
    assert cores(tmp_path, "0::/x\n", [version_2()], {f"{V2}/x": "200000 100000"}, pid=77) == 2
    assert usable_cores(0, str(tmp_path)) == 64
    assert usable_cores(78, str(tmp_path)) == 64, "it has ended"


def test_the_affinity_of_another_process() -> None:
    one = min(usable_cpus())
    code = f"import os; os.sched_setaffinity(0, [{one}]); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert usable_cores(process.pid) == 1
        process.kill()
    assert usable_cores(process.pid) == usable_cores()


def test_hardware_threads_of_one_core_count_once(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        write(tmp_path, path, f"{siblings}\n")
    assert physical_cores({0, 1, 2, 3}, str(tmp_path)) == 2
    assert physical_cores({0, 1}, str(tmp_path)) == 2
    assert physical_cores({0, 2}, str(tmp_path)) == 1
    assert physical_cores({0, 9}, str(tmp_path)) is None, "nothing is known of CPU 9"


@pytest.mark.parametrize(
    ("used", "busy", "share"),
    [
        (1.5, 1.5, 0.75),
        (1.5, 40.0, 0.75),  # the others have CPUs enough that this program may not fill
        (1.5, 64.0, 1.0),
        (1.5, 63.75, 0.875),
        (0.0, 62.0, 0.0),
        (9.0, 9.0, 1.0),
    ],
)
def test_shares_under_a_quota_are_of_the_cores_that_a_program_may_use(
    used: float, busy: float, share: float
) -> None:
    """Two cores' quota on 64 CPUs."""
    assert share_of_all(used, busy, 64, 2) == pytest.approx(share)


def test_atari_games_step_in_as_many_threads_as_there_are_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flatout.config.schema import EnvConfig
    from flatout.envs import atari

    asked: list[int] = []

    def opened(settings: object, count: int, threads: int, *more: object) -> object:
        asked.append(threads)
        raise InterruptedError

    monkeypatch.setattr(atari, "open_vector", opened)
    monkeypatch.setattr(atari, "usable_cores", lambda: 3)
    for count in (2, 8):
        with pytest.raises(InterruptedError):
            atari.AtariEnvs(EnvConfig("ALE/Pong-v5"), count, 0)
    assert asked == [2, 3]


def test_nothing_else_counts_cores() -> None:
    """Such a count would know nothing of a container's quota."""
    counts = re.compile(r"cpu_count|sched_getaffinity|cpu_affinity|cpu\.max|cfs_quota|\bnproc\b")
    found = {
        path.relative_to(source.parent).as_posix()
        for source in (Path(one.__file__).parent for one in (flatout, flatout_explain))
        for path in source.rglob("*.py") if counts.search(path.read_text())
    }  # fmt: skip
    assert found == {"flatout_explain/hardware/cores.py"}
