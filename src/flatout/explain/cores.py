"""Rules about the machine's cores, for other programs and for Flatout's own runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.explain.diagnosis import Finding
from flatout.explain.report import percent
from flatout.hardware.core_use import CoreUse
from flatout.hardware.monitor import MonitorSample

TAKEN = 0.2
"""From this share on of the core time that a program could have used, others took it."""

SATURATED = 0.85  # share of the cores in use from which on more threads only take turns
CROWDED = 1.5  # runnable threads per core from which on there are too many
SLOWER = 0.9  # a clock below this ratio of its earlier frequency is named


def contended(use: CoreUse | None) -> Finding | None:
    """Other programs had the cores that this one wanted."""
    if use is None or use.taken < TAKEN:
        return None
    evidence = [
        f"this program had {use.used:.1f} of {use.cores} cores and wanted "
        f"{min(use.used + (use.delayed or 0.0) + use.stolen, use.cores):.1f}"
    ]
    names = [f"{name} ({percent(amount / use.cores)})" for name, amount in use.programs]
    if use.stolen >= 0.05 * use.cores:
        names.append(f"the host of this virtual machine ({percent(use.stolen / use.cores)})")
    if names:
        evidence.append(f"the {use.cores} cores were also used by {', '.join(names)}")
    remedy = (
        "Stop the other programs, or give this one cores of its own (taskset, a container's "
        "limits), and explain it again: what follows is of the time in which it ran."
    )
    return Finding("contended", use.taken, tuple(evidence), remedy)


def oversubscribed(use: CoreUse | None) -> tuple[float, str] | None:
    """The share of its threads that wait for a core, and a sentence; None if there are cores
    enough, or other programs are the cause."""
    if use is None or use.runnable is None or use.runnable < CROWDED * use.cores:
        return None
    if use.used < SATURATED * use.cores:  # the cores are not the limit
        return None
    sentence = f"{use.runnable:.1f} threads want to run at once on {use.cores} cores"
    return min(1 - use.cores / use.runnable, 0.9), sentence


def slowdown(samples: Sequence[MonitorSample]) -> str:
    """A sentence if the cores' frequency fell by a tenth or more; else empty."""
    known = [sample.mhz for sample in samples if sample.mhz is not None]
    part = max(len(known) // 4, 1)
    if len(known) < 4:
        return ""
    before, after = (sum(some) / part for some in (known[:part], known[-part:]))
    if after > SLOWER * before:
        return ""
    return (
        f"The cores' frequency fell from {before:,.0f} to {after:,.0f} MHz: heat or a power limit "
        "slows them."
    )
