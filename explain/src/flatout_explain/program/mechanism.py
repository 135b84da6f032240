"""Learning's mechanism, arithmetic or the overhead of many tiny operations; and the same question
about the program's own code."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from flatout_explain.program import tags
from flatout_explain.program.calls import SHORT_NS, Replay
from flatout_explain.program.codes import Leaf
from flatout_explain.program.device_time import BACKWARD
from flatout_explain.program.evidence import Process
from flatout_explain.program.flow import Site
from flatout_explain.program.places import Places
from flatout_explain.program.tracks import Moment, spent

EAGER_NS = 500_000
"""`SHORT_NS` for JAX's operations outside of compiled functions, which cost more to launch."""

ENGINE = "_engine_run_backward"  # PyTorch's function around the backward pass
OFTEN = 0.05
"""From this share of a line's intervals without a name on, the long ones are operators. Fewer are
moments in which the thread had lost its core."""

LEAST_S = 0.002  # minimum time in windows that is judged
FEW_SHORT, LARGE = 0.05, 0.3
"""Of code that computes on whole arrays: maximum share of its time between short steps of Python,
and minimum share in long operations."""


@dataclass(frozen=True)
class Learning:
    """The composition of learning's time."""

    launch: float | None  # share spent in operations that are mostly overhead; None if unknown
    calls: float = 0.0  # calls of built-in functions per second of learning
    exact: bool = False  # from windows instead of samples
    counted: bool = True  # whether calls could be counted; else its mechanism is unknown
    update_s: float | None = None  # seconds of an update, by the optimiser's steps in windows


def learning(
    process: Process, places: Places, moments: list[Moment], windows: Iterable[Replay]
) -> Learning:
    """Return the composition of the driver's learning, from windows if there are any.

    Only time in which no device computes can be the overhead of launching operations.
    """
    found = _launching(process, places, moments, windows)
    if found.launch is None:
        return found
    total_s = spent(moments, ("learn",)) or 1.0
    host_s = spent((moment for moment in moments if not moment.device), ("learn",))
    return replace(found, launch=found.launch * host_s / total_s)


def _launching(
    process: Process, places: Places, moments: list[Moment], windows: Iterable[Replay]
) -> Learning:
    """Return the composition of learning's time on the host.

    The backward pass is one call, as coarse as the rest.
    """
    durations: dict[tuple[Site, str], list[float]] = defaultdict(list)
    updates = 0
    for window in windows:
        updates += sum(call.kind == "optimiser" for call in window.calls)
        for interval in window.intervals:
            mark = places.mark(interval.frames, Leaf(interval.name, interval.name))
            if mark.phase in ("learn", "transfer") and not mark.fetches:
                durations[interval.frames[0], interval.name].append(interval.ns)
    short = long = backward = 0.0
    count = 0
    for (site, name), values in durations.items():
        code = process.codes[site[0]]
        if name in BACKWARD or code.plain == ENGINE:  # or between what it calls back
            backward += sum(values)
            continue
        count += len(values) if name else 0
        shorter, longer = _divided(name, values, EAGER_NS if tags.is_jax(code) else SHORT_NS)
        short += shorter
        long += longer
    total = short + long + backward
    if total < LEAST_S * 1e9:
        return _uncounted(process, moments)
    return Learning(
        short / ((short + long) or 1.0), calls=count / (total / 1e9), exact=True,
        update_s=total / 1e9 / updates if updates else None,
    )  # fmt: skip


def _divided(name: str, values: Sequence[float], limit: float) -> tuple[float, float]:
    """Return the time of a line's intervals that is overhead, and that of operations longer than a
    limit."""
    large = [] if name else [ns for ns in values if ns >= limit]
    if len(large) >= max(OFTEN * len(values), 2):  # operators, which have no names, within a line
        return sum(values) - sum(large), sum(large)
    # The median: a thread that loses its core for some milliseconds looks busy.
    median = statistics.median(values)
    return (0.0, median * len(values)) if median >= limit else (median * len(values), 0.0)


def on_whole_arrays(process: Process, places: Places, windows: Iterable[Replay]) -> bool:
    """Return whether the program's own code spends its time in NumPy's operations on large arrays.

    These have no names in windows. A loop in which nothing is called may also look like one long
    operation: its time counts for neither.
    """
    if "numpy" not in process.libraries:
        return False
    durations, calls = defaultdict[tuple[Site, str], list[float]](list), set[Site]()
    for interval in (interval for window in windows for interval in window.intervals):
        calls.update(interval.frames[0 if interval.name else 1 :])
        if places.mark(interval.frames, Leaf(interval.name, interval.name)).phase == "other":
            durations[interval.frames[0], interval.name].append(interval.ns)
    total = short = large = 0.0
    for (site, name), values in durations.items():
        shorter, longer = _divided(name, values, SHORT_NS)
        total += shorter + longer
        short += shorter
        large += 0.0 if name or _loops_silently(process, site[0], calls) else longer
    enough = total >= LEAST_S * 1e9
    return enough and short <= FEW_SHORT * total and large >= LARGE * total


def _loops_silently(process: Process, number: int, calls: Collection[Site]) -> bool:
    """Return whether a function has a loop from which no call was seen, or is a comprehension."""
    code = process.codes[number]
    lines = [line for other, line in calls if other == number]
    heard = (any(first < line <= last for line in lines) for first, last in code.loops)
    return code.plain.startswith("<") or not all(heard)


def _uncounted(process: Process, moments: list[Moment]) -> Learning:
    """Return the composition without counted calls: arithmetic if most of the time is spent
    waiting for a device that computes, or in compiled functions, whose operations are fused;
    else unknown."""
    compiled = total = 0.0
    for moment in moments:
        if moment.mark.phase == "learn":
            stack = process.stacks[moment.stack]
            files = (process.codes[code].file for code, _ in stack.frames)
            large = moment.device or process.leaf(stack).kind.get("compiled")
            large = large or any(tags.GENERATED in file for file in files)
            total += moment.dt
            compiled += moment.dt * bool(large)
    arithmetic = 2 * compiled > total
    return Learning(0.0 if arithmetic else None, counted=arithmetic)
