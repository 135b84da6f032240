"""The steady state of a program: whole cycles of collecting and learning.

Many programs collect for a while, then learn for a while. An observation that ends within the first
cycle does not represent the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flatout.explain.program.tracks import Moment

LEARNING = ("learn", "transfer", "communicate")
COLLECTING = ("env", "act", "ipc", "wait", "eval")
COMPILING = ("compile", "first compilation")

WARMING = 0.3  # without learning, more compiling than this share of the time is still the start

BURST_S = 0.3  # a longer gap in learning is a pause
LEAST_S = 1.0  # minimum length of a steady state; otherwise everything after the imports is used

BESIDE = 4
"""Samples on each side that decide by majority whether a sample is learning or collecting."""

FOREIGN = 0.2
"""Maximum share of learning (and of collecting) surrounded by the other, if they alternate; more
means that they are concurrent, or alternate too quickly to be seen."""

LITTLE = 0.1  # if collecting takes less than this share of the time, cycles are not needed
SHORT = 0.3  # periods of learning shorter than this share of the longest are ignored
CYCLES = 2  # minimum number of whole cycles


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


def steady(
    moments: Sequence[Moment],
    began: float,
    finished: bool,
    learns: bool,
    applied: bool = True,
    steps: Sequence[float] = (),
) -> Steady:
    """Find the steady state in the driver's moments.

    Args:
        moments: of the driver.
        began: the program's start.
        finished: whether the program has ended.
        learns, applied: whether its code takes gradients, and was seen to do so. If not, a little
            learning is ignored: only names indicate it (``update_locals``).
        steps: times of environment steps in windows.
    """
    started = _started(moments, began)
    moments = [m for m in moments if m.t > started] or moments
    last = moments[-1].t
    learning = [m for m in moments if m.mark.phase in LEARNING]
    unseen, seconds = learns and not applied, sum(m.dt for m in moments)
    if not learning or (unseen and sum(m.dt for m in learning) < LITTLE * seconds):
        early = sum(m.dt for m in moments if m.mark.phase in (*COLLECTING, *COMPILING))
        compiles = sum(m.dt for m in moments if m.mark.phase in COMPILING) > WARMING * seconds
        waits = (unseen or compiles) and not finished and 2 * early > seconds
        part = "no learning yet" if waits else ""
        return Steady(started, started, last, part=part)
    periods = _learning_periods(moments)
    if periods is None or _collects_within(periods, moments, steps):
        bursts = _bursts(learning)
        begin = bursts[0][1] if len(bursts) > 2 else bursts[0][0]
        result = Steady(started, begin, bursts[-1][1] if finished else last)
    else:
        ends = [end for _, end in periods if finished or last - end > BURST_S]
        if len(ends) < CYCLES:
            seen = "not one whole cycle" if not ends else "only one whole cycle"
            part = f"{seen} of collecting and learning"
            return Steady(started, started, last, part="" if finished else part)
        begin = ends[0] if len(ends) > CYCLES else started
        cycle_s = (ends[-1] - ends[0]) / (len(ends) - 1)
        before = "the first cycle" if begin - started < 2 * cycle_s else Steady.before
        after = Steady.after if finished else "an unfinished cycle"
        result = Steady(started, begin, ends[-1], before, after)
    if result.end - result.begin < LEAST_S:
        return Steady(started, started, last)
    return result


def _started(moments: Sequence[Moment], began: float) -> float:
    """End of the imports in the first half."""
    imports = [m.t for m in moments if m.mark.phase == "import"]
    middle = (moments[0].t + moments[-1].t) / 2
    if imports and imports[-1] > middle:
        imports = [t for t in imports if t < middle]
    return max(imports, default=began)


def _learning_periods(moments: Sequence[Moment]) -> list[tuple[float, float]] | None:
    """(begin, end) of the periods of learning if a program alternates between collecting and
    learning; None if it does both at once, or only one of them."""
    relevant = [m for m in moments if m.mark.phase in LEARNING or m.mark.phase in COLLECTING]
    learns = [m.mark.phase in LEARNING for m in relevant]
    neighbours = [learns[max(at - BESIDE, 0) : at + BESIDE + 1] for at in range(len(relevant))]
    mostly_learning = [2 * sum(beside) > len(beside) for beside in neighbours]
    for kind in (True, False):
        same_kind = [at for at in range(len(relevant)) if learns[at] is kind]
        astray = sum(relevant[at].dt for at in same_kind if mostly_learning[at] is not kind)
        if not same_kind or astray > FOREIGN * sum(relevant[at].dt for at in same_kind):
            return None
    collected = sum(m.dt for m, learning in zip(relevant, learns, strict=True) if not learning)
    if collected < LITTLE * sum(m.dt for m in moments):
        return None
    periods: list[tuple[float, float]] = []
    before = 0
    for at, moment in enumerate(relevant):
        if not mostly_learning[at] or not learns[at]:
            continue
        begin = moment.t - moment.dt
        if periods and all(mostly_learning[before:at]):
            begin = periods.pop()[0]
        periods.append((begin, moment.t))
        before = at
    longest = max(end - begin for begin, end in periods)
    return [span for span in periods if span[1] - span[0] >= SHORT * longest or span is periods[-1]]


def _collects_within(
    periods: Sequence[tuple[float, float]], moments: Sequence[Moment], steps: Sequence[float]
) -> bool:
    """Whether environments also step within periods of learning, as once a replay buffer has
    filled."""
    for begin, end in periods:
        inside = [m for m in moments if begin + BURST_S < m.t - m.dt and m.t < end - BURST_S]
        collects = sum(m.mark.phase in COLLECTING for m in inside)
        if collects >= 3 and collects > 0.02 * len(inside):
            return True
        if any(begin + BURST_S < t < end - BURST_S for t in steps):
            return True
    return False


def _bursts(moments: Sequence[Moment]) -> list[tuple[float, float]]:
    """(begin, end) of periods without a longer pause."""
    bursts: list[tuple[float, float]] = []
    for moment in moments:
        begin = moment.t - moment.dt
        if bursts and begin - bursts[-1][1] <= BURST_S:
            bursts[-1] = (bursts[-1][0], moment.t)
        else:
            bursts.append((begin, moment.t))
    return bursts
