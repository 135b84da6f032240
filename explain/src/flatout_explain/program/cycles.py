"""The steady state of a program: whole cycles of collecting and learning.

Many programs collect for a while, then learn for a while. An observation of less than two cycles
does not represent them. If collecting and learning are interleaved more finely, there is no need
to look for cycles: then everything from the first learning on represents the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from flatout_explain.program.tracks import LEARNING, Moment, spent

COLLECTING = ("env", "act", "ipc", "wait", "eval")
COMPILING = ("compile", "first compilation")

SLICES = 100
"""Number of equal parts of an observation. Cycles shorter than three need not be distinguished."""

LITTLE = 0.1
"""Share of the time below which collecting or learning is ignored."""

LEAST_S = 1.0  # minimum length of a steady state; otherwise everything after the imports is used

Period = tuple[bool, list[list[Moment]]]
"""Whether it is one of learning, not of collecting; and its slices."""


@dataclass(frozen=True)
class Steady:
    """A program's steady state."""

    started: float  # end of the imports
    begin: float
    end: float
    # names of the periods before it (from `started` on) and after it
    before: str = "warm-up before steady learning"
    after: str = "after the last learning"
    part: str = ""  # why this is no whole cycle, or empty
    ends: tuple[float, ...] = ()  # of the whole cycles, if collecting and learning take turns


def steady(
    moments: Sequence[Moment],
    began: float,
    finished: bool,
    unseen: bool = False,
) -> Steady:
    """Find the steady state in the driver's moments.

    Args:
        moments: of the driver.
        began: the program's start.
        finished: whether the program has ended.
        unseen: whether its code takes gradients, and was not seen to do so.
    """
    middle = (moments[0].t + moments[-1].t) / 2  # later imports are part of its work
    imports = [m.t for m in moments if m.mark.phase == "import" and m.t < middle]
    started = max(imports, default=began)
    moments = [m for m in moments if m.t > started] or moments
    last, seconds = moments[-1].t, sum(m.dt for m in moments)
    learning = [m for m in moments if m.mark.phase in LEARNING]
    if not learning:
        early = spent(moments, (*COMPILING, *(COLLECTING if unseen else ())))
        waits = 2 * early > seconds and not finished
        return Steady(started, started, last, part="no learning yet" if waits else "")
    width = (last - started) / SLICES or 1.0
    periods = _periods(moments, width)
    # Up to the first pause, libraries warm up.
    pauses = [a.t for a, b in pairwise(learning) if a.t + width < b.t - b.dt and a.t < middle]
    begin = pauses[0] if pauses else learning[0].t - learning[0].dt
    result = Steady(started, begin, learning[-1].t if finished else last)
    if spent(moments, COLLECTING) >= LITTLE * seconds and not _interleaved(periods):
        complete = periods if finished else periods[:-1]
        ends = [slices[-1][-1].t for learns, slices in complete if learns]
        if len(ends) < 2:
            seen = "only one whole cycle" if ends else "not one whole cycle"
            part = "" if finished else f"{seen} of collecting and learning"
            return Steady(started, started, last, part=part)
        begin = ends[0] if len(ends) > 2 else started
        cycle_s = (ends[-1] - ends[0]) / (len(ends) - 1)
        # What lasts longer after them than all of them is no unfinished cycle: they were no cycles.
        if finished or last - ends[-1] <= ends[-1] - begin:
            before = "the first cycle" if begin - started < 2 * cycle_s else Steady.before
            after = Steady.after if finished else "an unfinished cycle"
            result = Steady(started, begin, ends[-1], before, after, ends=tuple(ends))
    if result.end - result.begin < LEAST_S:
        return Steady(started, started, last)
    return result


def _periods(moments: Sequence[Moment], width: float) -> list[Period]:
    """Return the periods of learning and of collecting in order. A slice is part of learning if
    learning takes more time than collecting in it and its two neighbours."""
    relevant = [m for m in moments if m.mark.phase in LEARNING or m.mark.phase in COLLECTING]
    slices = [list(run) for _, run in groupby(relevant, lambda m: m.t // width)]
    periods: list[Period] = []
    for at, one in enumerate(slices):
        three = [m for some in slices[max(at - 1, 0) : at + 2] for m in some]
        learns = spent(three, LEARNING) > spent(three, COLLECTING)
        if not periods or periods[-1][0] is not learns:
            periods.append((learns, []))
        periods[-1][1].append(one)
    return periods


def _interleaved(periods: Sequence[Period]) -> bool:
    """Return whether a program collects within its periods of learning, or learns within those of
    collecting. In the first and last slice of a longer period, it may do both."""
    learned = sum(spent(some, LEARNING) for _, run in periods for some in run)
    inner: dict[bool, list[Moment]] = {True: [], False: []}
    for learns, run in periods:
        inner[learns] += [m for some in run[1:-1] or run for m in some]
    within_learning = sum(m.dt for m in inner[True])
    return (
        spent(inner[False], LEARNING) > LITTLE * learned
        or spent(inner[True], COLLECTING) > LITTLE * within_learning
    )
