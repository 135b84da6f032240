"""The cores that a process may use: its affinity, and the CPU quotas of its control groups."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress

from flatout.storage.kernel import kernel_text


def usable_cores(pid: int = 0, root: str = "/") -> int:
    """Return how many cores a process can keep busy all the time, at least 1.

    This is the number of CPUs on which it may run or, where that is smaller, the quota of its
    control groups. A fractional quota is rounded down. With a quota of 2.5 cores and three busy
    threads, the kernel stops all of them for a part of each period.

    Args:
        pid: the process; 0 is this one. A process that has ended counts as this one.
        root: where /proc and /sys are.
    """
    return max(1, min([len(usable_cpus(pid)), *_quotas(pid, root)]))


def usable_cpus(pid: int = 0) -> frozenset[int]:
    """Return the numbers of the CPUs on which a process may run; all where the system knows no
    such limit. A process that has ended counts as this one."""
    with suppress(AttributeError, OSError):
        return frozenset(os.sched_getaffinity(pid))
    return usable_cpus() if pid else frozenset(range(os.cpu_count() or 1))


def share_of_all(used: float, busy: float, cpus: int, cores: int) -> float:
    """Return the share of a program's cores that all programs use.

    A program with a quota of fewer cores than it has CPUs loses nothing to others that use the
    CPUs that the quota leaves over.

    Args:
        used: cores that the program uses; `busy`: those that all programs use on its CPUs.
        cpus: CPUs on which the program may run, and `cores`, how many of these it may keep busy.
    """
    taken = max(busy - used - max(cpus - cores, 0), 0.0)
    return min(max(used + taken, 0.0) / cores, 1.0)


def _quotas(pid: int, root: str) -> Iterator[int]:
    """Yield the whole cores of each quota, from the process's own groups up to the topmost ones
    that are mounted here. A group can use no more than any group above it."""
    texts = (kernel_text(f"{root}/proc/{process}/cgroup") for process in (pid, "self"))
    text = next(filter(None, texts), "")
    for controllers, group in re.findall(r"^\d+:([^:\n]*):(.*)$", text, re.MULTILINE):
        if ".." in group.split("/"):  # above what this process may see
            continue
        mounts = list(_mounts(root, controllers))
        # A container may mount other groups as well, whose quotas are not its own.
        around = [(top, point) for top, point in mounts if f"{group}/".startswith(f"{top}/")]
        for top, point in around or mounts[:1]:
            names = group.removeprefix(top).split("/") if around else []
            for count in range(len(names), -1, -1):
                folder = os.path.join(f"{root}{point}", *names[:count])
                yield from _quota(folder)


def _mounts(root: str, controllers: str) -> Iterator[tuple[str, str]]:
    """Yield the topmost group ("" is the root) and the folder of each mount of a hierarchy.

    Args:
        controllers: the controllers of a hierarchy of version 1, or "" for version 2.
    """
    for line in kernel_text(f"{root}/proc/self/mountinfo").split("\n"):
        place, _, kind = line.partition(" - ")
        fields, described = place.split(), kind.split()
        if len(fields) < 5 or len(described) < 3:
            continue
        version_1 = described[0] == "cgroup" and "cpu" in described[2].split(",")
        if (version_1 and "cpu" in controllers.split(",")) or (
            described[0] == "cgroup2" and not controllers
        ):
            top, point = (re.sub(r"\\(\d{3})", _character, text) for text in fields[3:5])
            yield top.rstrip("/"), point


def _character(octal: re.Match[str]) -> str:
    return chr(int(octal[1], 8))


def _quota(folder: str) -> Iterator[int]:
    """Yield the whole cores of a group's quota, if it has one."""
    texts = (
        kernel_text(f"{folder}/cpu.max"),  # version 2
        " ".join(kernel_text(f"{folder}/cpu.cfs_{name}_us") for name in ("quota", "period")),
    )
    for text in texts:
        if found := re.fullmatch(r"(\d+)\s+([1-9]\d*)\s*", text):  # "max" and -1 are none
            yield int(found[1]) // int(found[2])
