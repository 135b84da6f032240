"""The cores that a process may use: its affinity, and the CPU quotas of its control groups."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

from flatout_explain.files.kernel import kernel_text
from flatout_explain.hardware.control_groups import group_folders


def usable_cores(pid: int = 0, root: str = "/", cpus: Collection[int] | None = None) -> int:
    """Return how many cores a process can keep busy all the time, at least 1.

    This is the number of CPUs on which it may run or, where that is smaller, the quota of its
    control groups. A fractional quota is rounded down. With a quota of 2.5 cores and three busy
    threads, the kernel stops all of them for a part of each period.

    Args:
        pid: the process; 0 is this one. A process that has ended counts as this one.
        root: where /proc and /sys are.
        cpus: the CPUs on which it may run; None reads them.
    """
    quotas = [quota for folder in group_folders("cpu", pid, root) for quota in _quota(folder)]
    return max(1, min([len(usable_cpus(pid) if cpus is None else cpus), *quotas]))


def usable_cpus(pid: int = 0) -> frozenset[int]:
    """Return the numbers of the CPUs on which a process may run; all where the system knows no
    such limit. A process that has ended counts as this one."""
    with suppress(AttributeError, OSError):
        return frozenset(os.sched_getaffinity(pid))
    return usable_cpus() if pid else frozenset(range(os.cpu_count() or 1))


def threads_cpus(threads: Iterable[int]) -> frozenset[int]:
    """Return the numbers of the CPUs on which any of these threads may run, without those of
    threads that have ended; none where the system knows no such limit."""
    cpus = set[int]()
    for thread in threads:
        with suppress(AttributeError, OSError):
            cpus |= os.sched_getaffinity(thread)
    return frozenset(cpus)


def physical_cores(cpus: Collection[int], root: str = "/") -> int | None:
    """Return how many cores these CPUs are, of which each may have several hardware threads; None
    where the system does not say it."""
    path = "{}/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    siblings = {kernel_text(path.format(root, cpu)).strip() for cpu in cpus}
    return None if "" in siblings or not siblings else len(siblings)


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


def _quota(folder: str) -> Iterator[int]:
    """Yield the whole cores of a group's quota, if it has one."""
    texts = (
        kernel_text(f"{folder}/cpu.max"),  # version 2
        " ".join(kernel_text(f"{folder}/cpu.cfs_{name}_us") for name in ("quota", "period")),
    )
    for text in texts:
        if found := re.fullmatch(r"(\d+)\s+([1-9]\d*)\s*", text):  # "max" and -1 are none
            yield int(found[1]) // int(found[2])
