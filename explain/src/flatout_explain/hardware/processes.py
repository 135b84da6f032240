"""CPU time, memory and threads of a process and its descendants.

On Linux this reads /proc directly: listing all processes of a busy machine would cost too much.
Elsewhere psutil does it.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from flatout_explain.documents import Number
from flatout_explain.files.kernel import kernel_text

MiB = 1024 * 1024
PATIENCE = 250.0  # seconds between two detailed readings, for each second that one takes

STATE, MINOR, MAJOR, UTIME, STIME, CUTIME, CSTIME, START = 0, 7, 9, 11, 12, 13, 14, 19
"""Fields of a stat file, counted after the name."""

_SWITCHES = re.compile(r"^((?:non)?voluntary)_ctxt_switches:\s*(\d+)", re.M)


class Faults(NamedTuple):
    """The page faults of a process: how often, or how often per second."""

    minor: Number  # memory that the system did not have to read
    main: Number  # those of the main thread
    major: Number  # memory that it had to read, such as from swap
    system: Number  # CPU seconds that the kernel spent for the process, or per second


FEW_FAULTS = Faults(200.0, 200.0, 1.0, math.inf)
"""Page faults per second of a process below which they are left out."""


@dataclass
class Reading:
    """The use of the hardware by a process tree so far."""

    total_s: float = 0.0  # CPU seconds of all processes, including reaped ones
    # CPU seconds by (pid, start time) of live processes
    processes: dict[tuple[int, float], float] = field(default_factory=dict)
    rss_mb: float | None = None  # resident memory in MiB, shared pages counted once
    threads: int = 0  # number of threads
    runnable: int | None = None  # running or runnable threads; None if not measured
    by_thread: dict[int, float] = field(default_factory=dict)  # CPU seconds; empty if not measured
    # seconds that each thread was ready to run and had no core; empty if not measured
    delays: dict[int, float] = field(default_factory=dict)
    switches: tuple[int, int] | None = None  # voluntary and involuntary, of live threads
    # of live processes, by (pid, start time); empty if not measured
    faults: dict[tuple[int, int], Faults] = field(default_factory=dict)
    reaped_s: float | None = None  # CPU seconds of the reaped processes alone; None if unknown


def brief_cores(before: Reading, after: Reading, seconds: float) -> float | None:
    """Return the cores that processes used which began after `before` and have ended since."""
    if before.reaped_s is None or after.reaped_s is None:
        return None
    ended = before.processes.keys() - after.processes.keys()
    known = sum(before.processes[process] for process in ended)
    return round(max(after.reaped_s - before.reaped_s - known, 0.0) / seconds, 4) or None


def fault_rates(before: Reading, after: Reading, seconds: float) -> dict[int, Faults]:
    """Return the page faults per second of each process that had many."""
    rates = {
        key[0]: Faults(*(
            round(max(new - old, 0.0) / seconds, 3)
            for new, old in zip(faults, before.faults[key], strict=True)
        ))
        for key, faults in after.faults.items()
        if key in before.faults
    }  # fmt: skip
    return {
        pid: rate
        for pid, rate in rates.items()
        if any(number >= few for number, few in zip(rate, FEW_FAULTS, strict=True))
    }


def open_tree(root: int, proc: Path = Path("/proc")) -> LinuxTree | PortableTree:
    """The cheapest reader of a process tree on this system."""
    return LinuxTree(root, proc) if (proc / "self" / "stat").exists() else PortableTree(root)


class LinuxTree:
    """Reads /proc.

    CPU times, memory and the processes that main threads have started are read every time; the
    other threads, and what they have started, only as often as it costs less than 0.4 % of a core.
    """

    def __init__(self, root: int, proc: Path = Path("/proc")) -> None:
        self._root, self._proc = root, str(proc)
        self._pids = [root]
        self._due = 0.0
        self._second = 1.0 / os.sysconf("SC_CLK_TCK")
        self._page_mb = os.sysconf("SC_PAGE_SIZE") / MiB

    def read(self) -> Reading:
        """Return what they have used so far; empty if all have ended."""
        reading = Reading()
        detailed = time.monotonic() >= self._due
        if detailed:
            began = time.thread_time()
            self._read_threads(reading)
            self._due = time.monotonic() + PATIENCE * (time.thread_time() - began)
        private = shared = 0.0
        pids, self._pids = self._pids, []
        for pid in pids:  # grows meanwhile
            fields = _stat(f"{self._proc}/{pid}/stat")
            if fields is None:
                continue
            self._pids.append(pid)
            if not detailed:
                pids += set(self._children(pid, pid)).difference(pids)
            used = (int(fields[UTIME]) + int(fields[STIME])) * self._second
            reaped = (int(fields[CUTIME]) + int(fields[CSTIME])) * self._second
            reading.total_s += used + reaped
            reading.reaped_s = (reading.reaped_s or 0.0) + reaped
            reading.processes[pid, int(fields[START])] = used
            main = _stat(f"{self._proc}/{pid}/task/{pid}/stat") or fields
            reading.faults[pid, int(fields[START])] = Faults(
                int(fields[MINOR]), int(main[MINOR]), int(fields[MAJOR]),
                int(fields[STIME]) * self._second,
            )  # fmt: skip
            if not detailed:
                reading.threads += int(fields[17])
            pages = kernel_text(f"{self._proc}/{pid}/statm").split()
            if len(pages) > 2:
                private += int(pages[1]) - int(pages[2])
                shared = max(shared, float(pages[2]))
        reading.rss_mb = (private + shared) * self._page_mb
        return reading

    def _read_threads(self, reading: Reading) -> None:
        """List the processes and read their threads."""
        pids, waiting = list[int](), [self._root]
        this_thread, runnable = threading.get_native_id(), 0
        switches = {"voluntary": 0, "nonvoluntary": 0}
        while waiting:
            pid = waiting.pop()
            pids.append(pid)
            try:
                threads = os.listdir(f"{self._proc}/{pid}/task")
            except OSError:
                continue
            for thread in threads:
                place = f"{self._proc}/{pid}/task/{thread}"
                waiting += self._children(pid, int(thread))
                fields = _stat(f"{place}/stat")
                if fields is None:
                    continue
                reading.threads += 1
                # The reading thread itself is always running.
                runnable += fields[STATE] == "R" and int(thread) != this_thread
                spent = (int(fields[UTIME]) + int(fields[STIME])) * self._second
                reading.by_thread[int(thread)] = spent
                scheduled = kernel_text(f"{place}/schedstat").split()
                if len(scheduled) > 1:
                    reading.delays[int(thread)] = int(scheduled[1]) * 1e-9
                for name, count in _SWITCHES.findall(kernel_text(f"{place}/status")):
                    switches[name] += int(count)
        self._pids = pids
        reading.runnable = runnable
        reading.switches = (switches["voluntary"], switches["nonvoluntary"])

    def _children(self, pid: int, thread: int) -> list[int]:
        """Return the processes that a thread has started."""
        return [*map(int, kernel_text(f"{self._proc}/{pid}/task/{thread}/children").split())]


def _stat(path: str) -> list[str] | None:
    """A stat file's fields after the name; None if the process is gone."""
    fields = kernel_text(path).rpartition(")")[2].split()
    return fields if len(fields) > START else None


class PortableTree:
    """Reads a process tree with psutil."""

    def __init__(self, root: int) -> None:
        self._root = root

    def read(self) -> Reading:
        """As `LinuxTree.read`."""
        import psutil

        reading = Reading()
        try:
            top = psutil.Process(self._root)
            processes = [top, *top.children(recursive=True)]
        except psutil.Error:
            return reading
        voluntary = involuntary = rss = 0
        for process in processes:
            with suppress(psutil.Error), process.oneshot():
                times, key = process.cpu_times(), (process.pid, process.create_time())
                used = times.user + times.system
                reading.total_s += used + (times.children_user + times.children_system)
                reading.processes[key] = used
                rss += process.memory_info().rss
                reading.threads += process.num_threads()
                switches = process.num_ctx_switches()
                voluntary += switches.voluntary
                involuntary += switches.involuntary
        reading.rss_mb = rss / MiB
        reading.switches = (voluntary, involuntary)
        return reading
