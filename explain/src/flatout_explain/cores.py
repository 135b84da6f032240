"""Rules about the machine's cores, for other programs and for Flatout's own runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from flatout_explain.diagnosis import Finding
from flatout_explain.hardware.core_use import CoreUse
from flatout_explain.hardware.monitor import MonitorSample
from flatout_explain.ranking import LEAST_SHARE
from flatout_explain.report import percent

TAKEN = 0.2
"""Least share, of the core time that a program could have used, that others had."""

SATURATED = 0.85  # share of the cores in use from which on more threads only take turns
CROWDED = 1.5  # runnable threads per core from which on there are too many
SLOWER = 0.9  # a clock below this ratio of its earlier frequency is named


def contended(use: CoreUse | None) -> Finding | None:
    """Return the finding that other programs had the cores that this one wanted."""
    if use is None or use.taken < TAKEN:
        return None
    evidence = [
        f"this program had {use.used:.1f} of {use.cores} cores and could have used "
        f"{min(use.used + (use.delayed or 0.0) + use.stolen, use.cores):.1f}"
    ]
    names = [f"{name} ({percent(amount / use.cores)})" for name, amount in use.programs]
    if use.stolen >= 0.05 * use.cores:
        names.append(f"the host of this virtual machine ({percent(use.stolen / use.cores)})")
    if names:
        evidence.append(f"shares of the {use.cores} cores that others used: {', '.join(names)}")
    remedy = (
        "Stop the other programs, or give this one cores of its own (taskset, a container's "
        "limits), and explain it again: the other findings are only about the time in which it ran."
    )
    return Finding("contended", use.taken, tuple(evidence), remedy)


def throttled(use: CoreUse | None) -> Finding | None:
    """Return the finding of a CPU quota that stops the program once it is used up, or None."""
    if use is None or use.stopped < LEAST_SHARE:
        return None
    evidence = (
        f"a CPU quota of its control group left it {use.used:.1f} cores; it wanted "
        f"{use.used + use.throttled:.1f}"
    )
    threads = f"{use.cores} thread{'s' if use.cores > 1 else ''}"
    remedy = (
        "Raise the quota (docker --cpus, Kubernetes limits.cpu, systemd CPUQuota), or compute "
        f"with {threads} (OMP_NUM_THREADS, torch.set_num_threads): once the quota of a period is "
        "used up, all threads are stopped until the next one."
    )
    return Finding("throttled", use.stopped, (evidence,), remedy)


def oversubscribed(use: CoreUse | None) -> tuple[float, str] | None:
    """Return the share of a program's threads that wait for a core, and a sentence; None if there
    are enough cores, or if other programs or a quota are the cause."""
    threads = None if use is None else use.wanting
    if use is None or threads is None or threads < CROWDED * use.cores or use.stopped >= TAKEN:
        return None
    # Where threads are seen to wait for a core, no core is free, even if switching takes its time.
    if use.delayed is None and use.used < SATURATED * use.cores:
        return None
    return waiting(use), f"on average {threads:.1f} threads want to run on {use.cores} cores"


def waiting(use: CoreUse) -> float:
    """Return the share of a program's threads that wait for a core, at most 0.9."""
    return min(max(1 - use.cores / (use.wanting or use.cores), 0.0), 0.9)


def slowdown(samples: Sequence[MonitorSample]) -> str:
    """Return a note if the cores' frequency fell by a tenth or more; else an empty text."""
    known = [sample.mhz for sample in samples if sample.mhz is not None]
    part = max(len(known) // 4, 1)
    if len(known) < 4:
        return ""
    before, after = (sum(some) / part for some in (known[:part], known[-part:]))
    if after > SLOWER * before:
        return ""
    return (
        f"The cores' frequency fell from {before:,.0f} to {after:,.0f} MHz during the observation: "
        "heat or a power limit slows them."
    )
