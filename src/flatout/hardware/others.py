"""Which other programs use the cores."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

from flatout.hardware.inventory import inventory
from flatout.output import printable

CROWDED = 0.25
"""Share of the cores that other programs use, from which on they are named."""

NAMED, LEAST = 3, 0.05
"""Most programs that are named, and the least share of the cores of one of them."""


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
    after, cores = _used(), inventory().cores
    whole_s = (time.perf_counter() - began) * cores
    own = psutil.Process()
    ours = {own.pid}
    with suppress(psutil.Error):
        ours |= {process.pid for process in own.children(recursive=True)}
    shares = dict[str, float]()
    for (pid, started), (name, used_s) in after.items():
        if pid not in ours:
            _, used_before_s = before.get((pid, started), ("", 0.0))  # it may have started since
            shares[name] = shares.get(name, 0.0) + (used_s - used_before_s) / whole_s
    if sum(shares.values()) < CROWDED:
        return ""
    most = sorted(shares.items(), key=lambda pair: -pair[1])[:NAMED]
    busiest = [pair for pair in most if pair[1] >= LEAST]
    words = [f"{printable(name)} ({100 * min(share, 1.0):.0f} %" for name, share in busiest]
    return "), ".join([f"{words[0]} of {cores} cores", *words[1:]]) + ")" if words else ""


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
