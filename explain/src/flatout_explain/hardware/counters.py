"""The kernel's counters of what stops a process: its groups' CPU quotas, and full memory."""

from __future__ import annotations

import mmap
import os
import re
import time
from itertools import chain

from flatout_explain.files.kernel import kernel_text
from flatout_explain.hardware.control_groups import group_folders

MEASURED = 2 << 20  # bytes of memory for which the time of page faults is measured: one huge page
GiB = 1 << 30
RECORD = 8192  # bytes of the longest line of the kernel's log


class Counters:
    """Counts since the start of the machine or of the groups; unknown ones are left out.

    Args:
        pid: the process whose control groups count; 0 is this one.
        root: where /proc and /sys are.
    """

    def __init__(self, pid: int = 0, root: str = "/") -> None:
        self._root = root
        self._cpu = list(group_folders("cpu", pid, root))
        self._memory = list(group_folders("memory", pid, root))

    def read(self) -> dict[str, float]:
        """Return the counters by name.

        - ``throttled``: seconds for which quotas stopped threads, summed over CPUs; the largest of
          nested groups, whose times overlap.
        - ``stalled``: seconds in which at least one thread waited for memory, of the process's own
          group in version 2, else of the machine.
        - ``swapped``: pages that the machine has written out and read back.
        - ``huge``: page faults of the machine that fetched a huge page.
        """
        found: dict[str, float] = {}
        throttled = [seconds for folder in self._cpu for seconds in _throttled(folder)]
        if throttled:
            found["throttled"] = max(throttled)
        pressures = (f"{folder}/memory.pressure" for folder in self._memory)
        for path in chain(pressures, [f"{self._root}/proc/pressure/memory"]):
            if stalled := re.search(r"^some .*total=(\d+)", kernel_text(path), re.M):
                found["stalled"] = int(stalled[1]) * 1e-6
                break
        names = ("pswpin", "pswpout", "thp_fault_alloc")
        events = _numbers(f"{self._root}/proc/vmstat", *names)
        if "pswpin" in events:
            found["swapped"] = events["pswpin"] + events.get("pswpout", 0)
        if "thp_fault_alloc" in events:
            found["huge"] = events["thp_fault_alloc"]
        return found

    def oom_kills(self) -> tuple[int, int]:
        """Return how many processes the kernel has ended because memory was full: of the process's
        own group, and of the machine; 0 where that is unknown."""
        groups = (
            _numbers(f"{folder}/memory.{name}", "oom_kill").get("oom_kill")
            for folder in self._memory
            for name in ("events", "oom_control")  # version 2, 1
        )
        own = next((count for count in groups if count is not None), 0)
        return own, _numbers(f"{self._root}/proc/vmstat", "oom_kill").get("oom_kill", 0)

    def memory_limit(self) -> int | None:
        """Return the smallest memory limit of the process's groups in bytes; None without one."""
        texts = (
            kernel_text(f"{folder}/memory.{name}").strip()
            for folder in self._memory
            for name in ("max", "limit_in_bytes")
        )
        limits = [int(text) for text in texts if text.isdecimal()]
        return min((limit for limit in limits if limit < 1 << 60), default=None)


def full_memory(pid: int, killed: bool, before: tuple[int, int], since: float) -> str:
    """Say whose full memory made the kernel end a process of a program; empty if it did not.

    Args:
        pid: the program's process, of the same control groups as this one.
        killed: whether SIGKILL ended it.
        before: `Counters.oom_kills` before it started, at `since` on the monotonic clock.
    """
    counters = Counters()
    own, everywhere = (now - then for now, then in zip(counters.oom_kills(), before, strict=True))
    limit = counters.memory_limit()
    if own > 0 and limit is not None:
        return f"the {limit / GiB:.1f} GiB of its control group"
    if not killed or everywhere <= 0 or killed_by_oom(pid, since) is False:
        return ""  # others were ended
    return "the machine's memory"


def killed_by_oom(pid: int, since: float, log: str = "/dev/kmsg") -> bool | None:
    """Return whether the kernel's log says that it ended a process because memory was full.

    Args:
        pid: the process.
        since: only lines after this time on the monotonic clock count.

    Returns:
        None where the log may not be read.
    """
    try:
        descriptor = os.open(log, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    try:
        while True:
            try:
                line = os.read(descriptor, RECORD).decode(errors="replace")
            except BrokenPipeError:  # this line was overwritten meanwhile
                continue
            except BlockingIOError:  # the end
                return False
            except OSError:
                return None
            if not line:
                return False
            time_us = line.partition(";")[0].split(",")[2:3]
            late = bool(time_us) and time_us[0].isdecimal() and int(time_us[0]) >= since * 1e6
            if late and re.search(rf"Killed process {pid}\b", line):
                return True
    finally:
        os.close(descriptor)


def page_fault_seconds() -> tuple[float, float] | None:
    """Measure what the kernel takes to fetch a page of memory and to take it back.

    Returns:
        Seconds of CPU time for a page and for a huge page; None where that cannot be measured.
    """
    try:
        small = [_fetch(mmap.MADV_NOHUGEPAGE) for _ in range(3)]
        huge = [_fetch(mmap.MADV_HUGEPAGE) for _ in range(3)]
    except (AttributeError, OSError, ValueError, ZeroDivisionError):
        return None
    return min(small), max(min(huge), min(small))


def _fetch(advice: int) -> float:
    """Return the seconds for each fault of writing into fresh memory."""
    import resource

    page = mmap.PAGESIZE
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    began = time.thread_time()
    with mmap.mmap(-1, 2 * MEASURED, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(advice)
        memory[::page] = bytes(2 * MEASURED // page)
    seconds = time.thread_time() - began
    return seconds / (resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)


def _throttled(folder: str) -> list[float]:
    """Return the seconds for which a group's quota stopped its threads, if they are counted."""
    units = {"throttled_usec": 1e-6, "throttled_time": 1e-9}  # version 2, 1
    counted = _numbers(f"{folder}/cpu.stat", *units)
    return [count * units[name] for name, count in counted.items()]


def _numbers(path: str, *names: str) -> dict[str, int]:
    """Return the numbers of these names in a file with lines of a name and a number."""
    found = re.findall(rf"^({'|'.join(names)}) (\d+)$", kernel_text(path), re.M)
    return {name: int(number) for name, number in found}
