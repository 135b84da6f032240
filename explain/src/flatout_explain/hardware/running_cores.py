"""How many cores really run at once, by the work of busy processes.

The count of cores says what a process may use. A CPU quota, other programs, a busy host or two
hardware threads that share one core leave less.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from flatout_explain.errors import FlatoutError
from flatout_explain.hardware.cores import physical_cores, usable_cores, usable_cpus
from flatout_explain.hardware.counters import Counters
from flatout_explain.hardware.monitor import BUSY, STOLEN, cpu_seconds
from flatout_explain.hardware.others import busiest_others

SECONDS = 0.5
"""Seconds for which each number of processes is busy: several periods of a CPU quota."""

ENOUGH = 0.85
"""Share of the counted cores that must run, and of one process's speed that each of several must
reach; less is reported."""

NAMED = 0.25
"""Least share of the missing cores that a cause explains if it is named."""

WAKE_S = 0.02
"""Seconds between the order to all processes and the moment at which they begin."""


SPINNER = """
import sys, time
for line in sys.stdin:
    begin, end = map(float, line.split())
    time.sleep(max(begin - time.monotonic(), 0.0))
    work, number, before = 0, 1, time.process_time()
    while time.monotonic() < end:
        for _ in range(500):
            number = number * 1103515245 + 12345 & 0x7FFFFFFF
        work += 1
    print(time.process_time() - before, work, flush=True)
"""
"""A busy process: for each line, a time to begin and a time to end, it computes between them."""


@dataclass(frozen=True)
class Busy:
    """Work of several busy processes at the same time.

    Attributes:
        processes: their number.
        running: their CPU seconds per second: the cores that ran for them.
        work: their work per second, in that of one process that has a core of its own.
    """

    processes: int
    running: float
    work: float


@dataclass(frozen=True)
class RunningCores:
    """The cores that this process may use, and those that really run at once.

    Attributes:
        cores: how many the process may use, by its affinity and its CPU quota.
        cpus: on how many CPUs it may run, and `physical`, how many cores these are where two
            hardware threads of a core are two CPUs; None if unknown.
        levels: what 1, 2, 4, ... busy processes did.
        throttled: cores that a CPU quota withheld from the largest number of processes; `stolen`:
            that the host of a virtual machine took; `others`: that other programs used.
        names: the other programs that use most, or empty.
    """

    cores: int
    cpus: int
    physical: int | None
    levels: tuple[Busy, ...]
    throttled: float = 0.0
    stolen: float = 0.0
    others: float = 0.0
    names: str = ""

    @property
    def asked(self) -> int:
        """The largest number of processes."""
        return self.levels[-1].processes

    @property
    def at_once(self) -> float:
        """Cores that ran at the same time."""
        return max(level.running for level in self.levels)

    @property
    def of_all(self) -> float:
        """Cores that ran for the largest number of processes."""
        return self.levels[-1].running

    @property
    def work(self) -> float:
        """The most work per second, in that of one process that has a core of its own."""
        return max(level.work for level in self.levels)

    @property
    def missing(self) -> float:
        """Cores that did not run for the largest number of processes; 0 if that is little."""
        return 0.0 if self.of_all >= ENOUGH * self.asked else self.asked - self.of_all

    @property
    def slower(self) -> bool:
        """Whether several processes are slower than one, although each has a core."""
        return self.work < ENOUGH * self.at_once

    def sentence(self) -> str:
        """Say how many cores run at once, and the probable reason if it is fewer than counted."""
        counted = f"{self.cores} core{'s' if self.cores > 1 else ''}"
        if self.cores < self.cpus:
            counted += f" (its CPU quota, of {self.cpus} CPUs)"
        if self.missing:
            text = (
                f"This process may use {counted}, but {self.of_all:.1f} ran at once for "
                f"{self.asked} busy process{'es' if self.asked > 1 else ''}: {self._reasons()}."
            )
        elif self.asked < self.cores:
            text = f"This process may use {counted}; {self.asked} of them ran at once."
        else:
            text = f"This process may use {counted}, and as many ran at once."
        if self.slower:
            text += (
                f" Together they did the work of {self.work:.1f} processes that have a core each: "
                f"{self._why_slower()}."
            )
        return text

    def _reasons(self) -> str:
        least, found = NAMED * self.missing, list[str]()
        if self.throttled >= least:
            found.append(
                f"a CPU quota of its control group withheld {self.throttled:.1f} cores (docker "
                "--cpus, Kubernetes limits.cpu, systemd CPUQuota)"
            )
        if self.stolen >= least:
            found.append(f"the host of this virtual machine took {self.stolen:.1f} cores")
        if self.others >= least:
            who = f" ({self.names})" if self.names else ""
            found.append(f"other programs used {self.others:.1f} cores{who}")
        return "; ".join(found) or (
            "nothing that can be read here says why; probably the host of this container or "
            "virtual machine gives it less than it lists"
        )

    def _why_slower(self) -> str:
        if self.physical is not None and self.physical < min(self.asked, self.cpus):
            return (
                f"the {self.cpus} CPUs are {self.physical} "
                f"core{'s' if self.physical > 1 else ''} with several hardware threads each, "
                "which share its arithmetic"
            )
        return (
            "probably the clock is slower while many cores work (power, heat), or other programs "
            "use the second hardware threads of the same cores"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the values for a file."""
        derived = {"at_once": self.at_once, "work": self.work, "sentence": self.sentence()}
        return asdict(self) | derived


def running_cores(
    cores: int | None = None, counts: Sequence[int] | None = None, seconds: float = SECONDS
) -> RunningCores:
    """Run busy processes and measure how many of them run at once.

    Args:
        cores: how many this process may use; by default those of `usable_cores`.
        counts: the numbers of processes, ascending from 1 on; by default 1, 2, 4, ... and `cores`.
        seconds: for how long each number of processes is busy.

    Raises:
        FlatoutError: processes cannot be started here, or one has ended.
    """
    cores, cpus = cores or usable_cores(), usable_cpus()
    counts, levels, counters = counts or doubled(cores), list[Busy](), Counters()
    taken, speed = (0.0, 0.0, 0.0), 0.0
    with ExitStack() as stack:
        processes = _started(counts[-1], stack)
        for count in counts:
            before = _taken(counters, cpus)
            cpu_s, work = _busy(processes[:count], seconds)
            after = _taken(counters, cpus)
            throttled, stolen, busy = (now - then for now, then in zip(after, before, strict=True))
            taken = throttled, stolen, busy - cpu_s - max(len(cpus) - cores, 0) * seconds
            speed = speed or work / max(cpu_s, 1e-9)  # of one process, in a second of CPU time
            levels.append(Busy(count, cpu_s / seconds, work / max(speed, 1e-9) / seconds))
    throttled, stolen, others = (max(amount, 0.0) / seconds for amount in taken)
    found = RunningCores(
        cores, len(cpus), physical_cores(cpus), tuple(levels), throttled, stolen, others
    )
    if found.missing and found.others >= NAMED * found.missing:
        found = replace(found, names=busiest_others(seconds))
    return found


def doubled(cores: int) -> list[int]:
    """Return 1, 2, 4, ... and the number of cores."""
    powers = (1 << power for power in range(cores.bit_length()))
    return sorted({*powers, cores})


def _started(count: int, stack: ExitStack) -> list[subprocess.Popen[bytes]]:
    """Start processes that wait for `_busy`; the stack ends them."""
    processes = list[subprocess.Popen[bytes]]()
    for number in range(count):
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", SPINNER], bufsize=0, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise FlatoutError(
                f"only {number} of {count} busy processes could be started ({error.strerror}); is "
                "there a limit (ulimit -u, pids.max)?"
            ) from None
        stack.enter_context(process)
        stack.callback(process.kill)
        processes.append(process)
    _busy(processes, 0.0)  # returns when all of them run
    return processes


def _busy(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> tuple[float, float]:
    """Keep processes busy at the same time; return the sums of their CPU seconds and their work."""
    begin, cpu_s, work = time.monotonic() + WAKE_S, 0.0, 0.0
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"{begin} {begin + seconds}\n".encode())
        for process in processes:
            assert process.stdout is not None
            used, done = map(float, process.stdout.readline().split())
            cpu_s, work = cpu_s + used, work + done
    except (OSError, ValueError):
        raise FlatoutError("a busy process ended before it had answered.") from None
    return cpu_s, work


def _taken(counters: Counters, cpus: frozenset[int]) -> tuple[float, float, float]:
    """CPU seconds so far: withheld by quotas, taken by the host, and used by all programs; 0 where
    nothing counts them."""
    throttled = counters.read().get("throttled", 0.0)
    return throttled, cpu_seconds(cpus, STOLEN) or 0.0, cpu_seconds(cpus, BUSY) or 0.0
