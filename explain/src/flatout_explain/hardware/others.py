"""Which other programs use the cores."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

import psutil

from flatout_explain.hardware.cores import share_of_all, usable_cores, usable_cpus
from flatout_explain.output import printable

CROWDED = 0.25
"""Share of the cores that other programs use, from which on they are named."""

NAMED, LEAST = 3, 0.05
"""Most programs that are named, and the least share of the cores of one of them."""


EVERY_S = 4.0
"""Seconds between two readings of all processes by `Others`, which takes some milliseconds."""


class Others:
    """Measures which other programs use the cores, from time to time.

    Args:
        pid: this process and its descendants are no others; nor are the calling process and its.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._at, self._before = -EVERY_S, dict[tuple[int, float], tuple[str, float]]()
        self._found: dict[str, float] = {}

    def read(self) -> dict[str, float]:
        """Cores that the busiest other programs used, by name, since the last reading; empty
        until two came in short order. Processes of one name count together."""
        now = time.perf_counter()
        if now - self._at >= EVERY_S:
            after, self._found = _used(), {}
            if self._before and now - self._at < 2 * EVERY_S:
                used_s = _by_name(self._before, after, _family(self._pid) | _family(os.getpid()))
                cores = {name: round(s / (now - self._at), 3) for name, s in used_s.items()}
                self._found = _busiest(cores)
            self._at, self._before = now, after
        return self._found


def busiest_others(seconds: float = 0.5) -> str:
    """Name the other programs that use the cores most, such as "gcc (62 % of 2 cores), make (9 %)".

    Processes of one name count together. This process and those that it has started are no others.

    Args:
        seconds: for how long their use is measured.

    Returns:
        The names; empty if other programs use less than `CROWDED` of the cores.
    """
    began, before = time.perf_counter(), _used()
    time.sleep(seconds)
    after, cores = _used(), usable_cores()
    whole_s = (time.perf_counter() - began) * cores
    used = _by_name(before, after, _family(os.getpid()))
    shares = {name: seconds / whole_s for name, seconds in used.items()}
    all_shares = sum(shares.values())
    if share_of_all(0.0, all_shares * cores, len(usable_cpus()), cores) < CROWDED:
        return ""
    busiest = _busiest(shares).items()
    words = [f"{printable(name)} ({100 * min(share, 1.0):.0f} %" for name, share in busiest]
    return "), ".join([f"{words[0]} of {cores} cores", *words[1:]]) + ")" if words else ""


def _busiest(used: Mapping[str, float]) -> dict[str, float]:
    """The `NAMED` programs that use most, each at least `LEAST`, the busiest first."""
    most = sorted(used.items(), key=lambda pair: -pair[1])[:NAMED]
    return {name: amount for name, amount in most if amount >= LEAST}


def _family(pid: int) -> set[int]:
    """A process and its descendants."""
    family = {pid}
    with suppress(psutil.Error):
        family |= {process.pid for process in psutil.Process(pid).children(recursive=True)}
    return family


def _by_name(
    before: Mapping[tuple[int, float], tuple[str, float]],
    after: Mapping[tuple[int, float], tuple[str, float]],
    ours: Collection[int],
) -> dict[str, float]:
    """CPU seconds by program between two readings, without our processes."""
    used = dict[str, float]()
    for (pid, started), (name, used_s) in after.items():
        if pid not in ours:
            _, used_before_s = before.get((pid, started), ("", 0.0))  # it may have started since
            used[name] = used.get(name, 0.0) + used_s - used_before_s
    return used


def _used() -> dict[tuple[int, float], tuple[str, float]]:
    """Name and CPU seconds of every process, by its number and start; those that may not be read
    are left out."""
    used: dict[tuple[int, float], tuple[str, float]] = {}
    for process in psutil.process_iter(["name", "cpu_times", "create_time"]):
        info = process.info
        if info["cpu_times"] is not None:
            spent = info["cpu_times"].user + info["cpu_times"].system
            used[process.pid, info["create_time"]] = info["name"] or "?", spent
    return used
