"""From pairs of speeds to their ratio with its interval, and to the phases that moved."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flatout_explain.against.rates import (
    CALLS,
    EVALUATES,
    STEPS,
    UNITS,
    UPDATES,
    WALL,
    Run,
    count_words,
    units_in_order,
)
from flatout_explain.errors import FlatoutError
from flatout_explain.ranking import STUDENT
from flatout_explain.report import percent, ratio_words

NARROW = math.log(1.1)
"""No more rounds are made once half of the interval of the ratio's logarithm is this narrow."""
LEAST_PAIRS = 3

STARTS = 0.09
"""Half of an interval of 95 % for how the ratio of one round, in which each program was started
once, differs from that of many. Two processes of the same program differ in speed: over the
programs of `benchmarks/explain/zoo` their ratio had a standard deviation of about 3 % in
earlier runs, and of 8 % when one of them, clone_driver, was started five times. The later runs in
RESULTS.md have 4.9 %, noise within a run included (`run_against.py --equal`)."""

EACH = {CALLS: "each counted", STEPS: "each environment step", UPDATES: "each optimiser step"}

WIDE = 1.6
"""An interval that contains 1 and is wider, from end to end, does not say that there is no
difference."""

FEW = 20
"""A speed of fewer counts is coarse."""

MOVED = 0.02  # phases whose share changed by less are not listed
MOST_MOVED = 5


@dataclass(frozen=True)
class Moved:
    """How a phase's share of the time changed; and its seconds for one unit of work, if counted."""

    phase: str
    was: float
    now: float
    was_s: float | None = None
    now_s: float | None = None


@dataclass(frozen=True)
class Outcome:
    """How much faster the second program is."""

    unit: str  # what the speed counts, of `UNITS`
    was: float  # median speeds of both programs
    now: float
    gain: float  # the median of the pairs' ratios
    low: float | None  # an interval that holds 95 %; None of a single pair
    high: float | None
    pairs: int  # number of pairs of speeds
    moved: tuple[Moved, ...] = ()  # the phases whose shares changed most, these first
    notes: tuple[str, ...] = ()  # what makes it less certain, one sentence each

    @property
    def same(self) -> bool | None:
        """Whether no difference was seen; None where a large one is still possible."""
        if self.low is None or self.high is None:
            return None
        if not self.low <= 1 <= self.high:
            return False
        return True if self.high < self.low * WIDE else None

    @property
    def narrow(self) -> bool:
        """Whether more pairs would say little more."""
        if self.low is None or self.high is None or self.pairs < LEAST_PAIRS:
            return False
        return math.log(self.high / self.low) <= 2 * NARROW

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as ``--json`` writes it."""
        return asdict(self) | {"same": self.same}


def outcome(
    first: Sequence[Run], second: Sequence[Run], gains: Sequence[Mapping[str, list[float]]] = ()
) -> Outcome:
    """Return the outcome of rounds, in each of which both programs ran.

    Args:
        first, second: the programs' runs.
        gains: of each round, by unit, the ratios of the speeds in its turns. A round in which
            they are unknown counts as one pair, of both runs' speeds.

    Raises:
        FlatoutError: there is no unit that both programs have.
    """
    unit = common_unit(first, second)
    was, now = ([run.rates[unit] for run in runs] for runs in (first, second))
    known = [*gains, *[{}] * (len(was) - len(gains))]
    ratios = [
        ratio
        for before, after, turns in zip(was, now, known, strict=True)
        for ratio in turns.get(unit) or [after / before]
    ]
    low, high = interval(ratios, len(was)) or (None, None)
    work = (None, None) if unit == WALL else (statistics.median(was), statistics.median(now))
    return Outcome(
        unit, statistics.median(was), statistics.median(now), statistics.median(ratios), low, high,
        len(ratios), moved(first, second, *work),
        tuple(_notes([*first, *second], unit)),
    )  # fmt: skip


def _notes(runs: Sequence[Run], unit: str) -> Iterator[str]:
    fewest = min(run.counted.get(unit, FEW) for run in runs)
    if fewest < FEW:
        yield f"only {fewest:.0f} {unit} were counted in a run: raise --seconds, or use --count"
    share = evaluating(runs)
    if unit in (STEPS, UPDATES) and share >= EVALUATES:
        rule = "steps within it are not counted"
        if unit == UPDATES:
            rule = "environment steps are not compared"
        yield f"evaluation takes up to {percent(share)} of a run: {rule}"
    contended = max(run.contended for run in runs)
    if contended > 0:
        yield (
            f"other programs took up to {percent(contended)} of the core time that a run could "
            "have used: stop them"
        )
    part = next((run.part for run in runs if run.part), "")
    if part:
        yield f"only a part of what the program does was seen in a run ({part}): raise --seconds"


def common_unit(first: Sequence[Run], second: Sequence[Run]) -> str:
    """Return the first unit that all runs of both programs have.

    Raises:
        FlatoutError: there is none.
    """
    have = [set(UNITS).intersection(*(run.rates for run in runs)) for runs in (first, second)]
    for unit in units_in_order(evaluating(first, second)):
        if unit in have[0] and unit in have[1]:
            return unit
    counted = [" and ".join(unit for unit in UNITS if unit in units) for units in have]
    how = "name a function that both call with --count module:function"
    if not any(counted):
        raise FlatoutError(
            "neither program steps a Gymnasium environment or a PyTorch optimiser that can be "
            f"counted, and not both have ended: {how}, or raise --seconds until both programs end."
        )
    words = [each or "nothing that can be counted" for each in counted]
    longer = ", or raise --seconds until both programs end" if WALL in have[0] ^ have[1] else ""
    raise FlatoutError(
        f"the two programs have nothing in common that can be counted: the first has {words[0]}, "
        f"the second {words[1]}; {how}{longer}."
    )


def evaluating(*programs: Sequence[Run]) -> float:
    """Return the largest share of the time that evaluation had in a run."""
    return max(run.phases.get("eval", 0.0) for runs in programs for run in runs)


def interval(gains: Sequence[float], rounds: int) -> tuple[float, float] | None:
    """Return a 95 % interval for the ratio of speeds; None for a single pair.

    It is Student's, of the logarithms. Of nine pairs and more a tenth on each side counts only as
    the next one inside (Tukey and McLaughlin, 1963), so that single disturbed pairs do not matter.
    By how much starts differ (`STARTS`) is added, as the width of an independent error.

    Args:
        gains: ratios of the pairs' speeds.
        rounds: how often the programs were started.
    """
    n, logs = len(gains), sorted(map(math.log, gains))
    if n < 2:
        return None
    cut = (n + 1) // 10
    kept = logs[cut : n - cut]
    deviation = statistics.stdev([kept[0]] * cut + kept + [kept[-1]] * cut)
    half = STUDENT[min(len(kept) - 1, len(STUDENT)) - 1] * deviation * math.sqrt(n) / len(kept)
    centre, middle = statistics.fmean(kept), statistics.median(logs)
    low, high = centre - half, centre + half
    starts = STARTS / math.sqrt(rounds)
    below, above = (math.hypot(max(half, 0.0), starts) for half in (middle - low, high - middle))
    return math.exp(middle - below), math.exp(middle + above)


def moved(
    first: Sequence[Run], second: Sequence[Run], was: float | None = None, now: float | None = None
) -> tuple[Moved, ...]:
    """Return the phases whose shares of the time changed most.

    Args:
        was, now: units of work per second of both programs, if they were counted.
    """
    found: list[Moved] = []
    for phase in sorted({phase for run in (*first, *second) for phase in run.phases}):
        before, after = (
            statistics.fmean(run.phases.get(phase, 0.0) for run in runs) for runs in (first, second)
        )
        if abs(after - before) >= MOVED:
            was_s = None if was is None else before / was
            now_s = None if now is None else after / now
            found.append(Moved(phase, before, after, was_s, now_s))
    found.sort(key=lambda one: -abs(one.now - one.was))
    return tuple(found[:MOST_MOVED])


def lines(found: Outcome, name: str, count: str = "") -> list[str]:
    """Return the outcome in words: the ratio, both speeds, and a line for each phase that moved.

    Args:
        name: the second program's command line.
        count: the function whose calls were counted, if that was asked for.
    """
    unit, pairs = unit_words(found, count), pair_words(found)
    if found.low is None or found.high is None:
        (ratio,) = ratio_words(found.gain)
        said = [f"{name}: {ratio}x {unit}, {pairs}: too few for an interval"]
    else:
        ratio, low, high = ratio_words(found.gain, found.low, found.high)
        undecided = ": undecided; raise --minutes or --seconds" if found.same is None else ""
        said = [f"{name}: {ratio}x ({low} to {high}) {unit}, {pairs}{undecided}"]
        if found.same:
            said = [f"{name}: no difference ({low} to {high}) in {unit}, {pairs}"]
    if found.unit == WALL:
        said.append(f"{1 / found.was:.1f} s before, {1 / found.now:.1f} s with it")
    else:
        said.append(f"{speed_words(found.was)} per second before, {speed_words(found.now)} with it")
    width = max((len(one.phase) for one in found.moved), default=0)
    for one in found.moved:
        line = f"{one.phase:<{width}}  {100 * one.was:3.0f} % to {100 * one.now:3.0f} % of the time"
        if one.was_s is not None and one.now_s is not None:
            line += f", {1e3 * one.was_s:.3g} to {1e3 * one.now_s:.3g} ms for {EACH[found.unit]}"
        said.append(line)
    return [*said, *found.notes]


def unit_words(found: Outcome, count: str = "") -> str:
    """Return the unit of speed in words: ``environment steps per second``."""
    counted = count_words(count) if found.unit == CALLS else found.unit
    return "speed of the whole program" if found.unit == WALL else f"{counted} per second"


def pair_words(found: Outcome) -> str:
    """Return the number of pairs of speeds in words."""
    return f"{found.pairs} {'pair' if found.pairs == 1 else 'pairs'}"


def speed_words(rate: float) -> str:
    """Return a speed with three digits: ``0.0123``, ``4.56``, ``12,300``."""
    if rate >= 100:
        return f"{float(f'{rate:.3g}'):,.0f}"
    return f"{rate:.3g}"
