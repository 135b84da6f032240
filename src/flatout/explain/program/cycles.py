"""Which part of what was seen repeats itself: whole cycles of collecting and learning.

Many programs collect for a while, then learn for a while. A window that ends amid the first cycle
has seen one half of what the program does, and says nothing of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flatout.explain.program.timeline import Moment

LEARNING = ("learn", "transfer", "communicate")
COLLECTING = ("env", "act", "ipc", "wait", "eval")

BURST_S = 0.3
"""Learning that rests for longer than this has paused."""

LEAST_S = 1.0
"""A steady state shorter than this explains nothing: everything after the imports is taken."""

BESIDE = 4
"""Samples before and after one by which it is told what the program is at just then."""

FOREIGN = 0.2
"""So much of learning at most, and of collecting, lies amid the other, where they take turns. Where
they go side by side, or in turns too short to be seen, it is more; there are many of those."""

LITTLE = 0.1
"""Where collecting takes less than this share of the time it matters little where a cycle ends."""

SHORT = 0.3
"""A stretch so much shorter than the longest is none: a place or two that only looked like it."""

CYCLES = 2
"""So many whole cycles stand for all."""


@dataclass(frozen=True)
class Steady:
    """The time in which a program repeats itself.

    Attributes:
        started: when the imports were over.
        begin, end: the steady state.
        before, after: what is left out before it (from `started` on) and after it, in words.
        part: why this is no whole cycle, in words; empty where it is.
    """

    started: float
    begin: float
    end: float
    before: str = "warm-up before steady learning"
    after: str = "after the last learning"
    part: str = ""


def steady(
    moments: Sequence[Moment],
    began: float,
    finished: bool,
    learns: bool,
    applied: bool = True,
    steps: Sequence[float] = (),
) -> Steady:
    """Find it in what the driver did.

    Args:
        moments: of the driver.
        began: the program's start.
        finished: whether the program has ended: what it did is all that there is.
        learns: whether its code takes gradients, seen or not.
        applied: whether it was seen to do so. Else a little learning, which names alone tell of
            (``update_locals``), is none.
        steps: when a window has seen an environment step.
    """
    started = _started(moments, began)
    moments = [m for m in moments if m.t > started] or moments
    last = moments[-1].t
    learning = [m for m in moments if m.mark.phase in LEARNING]
    if learns and not applied:
        few = sum(m.dt for m in learning) < LITTLE * sum(m.dt for m in moments)
        learning = [] if few else learning
    if not learning:
        collects = sum(m.dt for m in moments if m.mark.phase in COLLECTING)
        alone = (
            learns and not applied and not finished and 2 * collects > sum(m.dt for m in moments)
        )
        return Steady(started, started, last, part="no learning yet" if alone else "")
    stretches = _stretches(moments)
    if stretches is None or _beside(stretches, moments, steps):
        bursts = _bursts(learning)
        begin = bursts[0][1] if len(bursts) > 2 else bursts[0][0]
        found = Steady(started, begin, bursts[-1][1] if finished else last)
    else:
        ends = [end for _, end in stretches if finished or last - end > BURST_S]
        if len(ends) < CYCLES:
            seen = "not one whole cycle" if not ends else "only one whole cycle"
            part = f"{seen} of collecting and learning"
            return Steady(started, started, last, part="" if finished else part)
        begin = ends[0] if len(ends) > CYCLES else started
        usual = (ends[-1] - ends[0]) / (len(ends) - 1)
        before = "the first cycle" if begin - started < 2 * usual else Steady.before
        after = Steady.after if finished else "an unfinished cycle"
        found = Steady(started, begin, ends[-1], before, after)
    if found.end - found.begin < LEAST_S:
        return Steady(started, started, last)
    return found


def _started(moments: Sequence[Moment], began: float) -> float:
    """When the imports were over; a late one is no start-up."""
    imports = [m.t for m in moments if m.mark.phase == "import"]
    middle = (moments[0].t + moments[-1].t) / 2
    if imports and imports[-1] > middle:
        imports = [t for t in imports if t < middle]
    return max(imports, default=began)


def _stretches(moments: Sequence[Moment]) -> list[tuple[float, float]] | None:
    """(begin, end) of the stretches of learning where a program collects and learns in turn; None
    where it does both side by side, or only one of them."""
    told = [m for m in moments if m.mark.phase in LEARNING or m.mark.phase in COLLECTING]
    learns = [m.mark.phase in LEARNING for m in told]
    around = [learns[max(at - BESIDE, 0) : at + BESIDE + 1] for at in range(len(told))]
    most = [2 * sum(beside) > len(beside) for beside in around]
    for kind in (True, False):
        own = [at for at in range(len(told)) if learns[at] is kind]
        astray = sum(told[at].dt for at in own if most[at] is not kind)
        if not own or astray > FOREIGN * sum(told[at].dt for at in own):
            return None
    collected = sum(m.dt for m, learning in zip(told, learns, strict=True) if not learning)
    if collected < LITTLE * sum(m.dt for m in moments):
        return None
    stretches: list[tuple[float, float]] = []
    before = 0
    for at, moment in enumerate(told):
        if not most[at] or not learns[at]:
            continue
        begin = moment.t - moment.dt
        if stretches and all(most[before:at]):
            begin = stretches.pop()[0]
        stretches.append((begin, moment.t))
        before = at
    longest = max(end - begin for begin, end in stretches)
    return [one for one in stretches if one[1] - one[0] >= SHORT * longest or one is stretches[-1]]


def _beside(
    stretches: Sequence[tuple[float, float]], moments: Sequence[Moment], steps: Sequence[float]
) -> bool:
    """Whether environments step on amid learning, if only now and then: before a replay buffer is
    filled a program collects alone, and then it does both."""
    for begin, end in stretches:
        inside = [m for m in moments if begin + BURST_S < m.t - m.dt and m.t < end - BURST_S]
        collects = sum(m.mark.phase in COLLECTING for m in inside)
        if collects >= 3 and collects > 0.02 * len(inside):
            return True
        if any(begin + BURST_S < t < end - BURST_S for t in steps):
            return True
    return False


def _bursts(moments: Sequence[Moment]) -> list[tuple[float, float]]:
    """(begin, end) of stretches without a longer pause."""
    found: list[tuple[float, float]] = []
    for moment in moments:
        begin = moment.t - moment.dt
        if found and begin - found[-1][1] <= BURST_S:
            found[-1] = (found[-1][0], moment.t)
        else:
            found.append((begin, moment.t))
    return found
