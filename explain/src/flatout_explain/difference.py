"""The difference between two reports: phases, causes and lines that take more or less time. Pure.

Where both programs counted the same kind of work, the time for a unit of it is compared. A share of
the time grows merely because the rest shrinks; the time for a unit of work does not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flatout_explain.against.outcome import MOVED, speed_words
from flatout_explain.against.rates import units_in_order
from flatout_explain.causes import UNKNOWN
from flatout_explain.diagnosis import LEAST_LINE, SCHEMA
from flatout_explain.document import Interval, Report, WorkRate
from flatout_explain.errors import UsageError
from flatout_explain.ranking import LEAST_SHARE
from flatout_explain.report import duration, in_order, percent

MOST = 8  # changes of a kind that are listed
KIND = {"program": "a program", "run": "a run of Flatout", "trace": "a profiler's trace"}


@dataclass(frozen=True)
class Amount:
    """How much time something takes."""

    share: float  # of the time
    interval: Interval | None = None  # holds the share with 95 %
    each_s: float | None = None  # seconds for one unit of work
    each_interval: Interval | None = None


@dataclass(frozen=True)
class Change:
    """A phase, a cause or a line that takes more or less time than before."""

    name: str
    was: Amount | None  # None where the report does not list it
    now: Amount | None
    moved: float  # change of its time, as a share of all time before
    sure: bool | None  # whether the intervals are disjoint; None without intervals

    @property
    def words(self) -> str:
        """``grew``, ``shrank``, or that this is not certain."""
        word = "grew" if self.moved > 0 else "shrank"
        return f"{word} (not certain: the intervals overlap)" if self.sure is False else word


@dataclass(frozen=True)
class Difference:
    """The changes between two reports, the largest ones first."""

    was: Report
    now: Report
    unit: str  # of work; empty if the programs have counted none in common
    phases: tuple[Change, ...]
    causes: tuple[Change, ...]
    lines: tuple[Change, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the difference as ``--json`` writes it."""
        about = {
            name: {"subject": one.subject, "verdict": one.verdict, "seconds": one.seconds,
                   "per_s": one.work[self.unit].per_s if self.unit else None}
            for name, one in (("was", self.was), ("now", self.now))
        }  # fmt: skip
        kinds = ("phases", "causes", "lines")
        changes = {name: list(map(asdict, getattr(self, name))) for name in kinds}
        return {
            "schema": SCHEMA, "kind": "difference", **about, "unit": self.unit or None, **changes,
            "notes": list(self.notes),
        }  # fmt: skip


def difference(was: Report, now: Report) -> Difference:
    """Compare two reports.

    Raises:
        UsageError: they are of different kinds.
    """
    if was.kind != now.kind:
        raise UsageError(
            f"--diff compares reports of one kind, and these are of {KIND[was.kind]} and of "
            f"{KIND[now.kind]}."
        )
    unit = _unit(was, now)

    def rates(one: Report) -> WorkRate | None:
        return one.work[unit] if unit else None

    phases, causes, lines = (
        _changes(
            {name: _amount(*known, rates(was)) for name, known in of(was).items()},
            {name: _amount(*known, rates(now)) for name, known in of(now).items()},
            None if not unit else was.work[unit].per_s,
            least,
        )
        for of, least in ((_phases, 0.0), (_causes, LEAST_SHARE), (_lines, LEAST_LINE))
    )
    return Difference(was, now, unit, phases, causes, lines, tuple(_notes(was, now, unit)))


def _unit(was: Report, now: Report) -> str:
    """Return the unit of work of the comparison, or an empty text: a function's calls come
    first."""
    common = [unit for unit in was.work if unit in now.work]
    evaluates = units_in_order(was.phases.get("eval", 0.0), now.phases.get("eval", 0.0))
    rank = {unit: at for at, unit in enumerate(evaluates)}
    return min(common, key=lambda unit: rank.get(unit, -1), default="")


Known = Mapping[str, tuple[float, Interval | None]]


def _phases(report: Report) -> Known:
    return {name: (report.phases[name], report.intervals.get(name))
            for name in in_order(report.phases)}  # fmt: skip


def _causes(report: Report) -> Known:
    known = (one for one in report.findings if one.share and one.id != UNKNOWN)
    return {one.id: (one.share, one.interval) for one in known}


def _lines(report: Report) -> Known:
    """Return shares by line. An edited file has other numbers of lines: a line is known by its
    source."""
    found: dict[str, float] = {}
    for one in report.heaviest:
        file = re.sub(r":\d+", "", one.place) if one.text else one.place
        name = f"{file} `{one.text}`" if file and one.text else file or one.text
        found[name] = found.get(name, 0.0) + one.share
    return {name: (share, None) for name, share in found.items()}


def _amount(share: float, interval: Interval | None, rate: WorkRate | None) -> Amount:
    if rate is None:
        return Amount(share, interval)
    each = share / rate.per_s
    if interval is None or rate.interval is None or not share:
        return Amount(share, interval, each)
    # Errors of the share and of the rate, as if they were independent.
    halves = (
        (interval[1] - interval[0]) / 2 / share,
        (rate.interval[1] - rate.interval[0]) / 2 / rate.per_s,
    )
    half = math.hypot(*halves)
    return Amount(share, interval, each, (max(each * (1 - half), 0.0), each * (1 + half)))


def _changes(
    was: Mapping[str, Amount], now: Mapping[str, Amount], per_s: float | None, least: float
) -> tuple[Change, ...]:
    """Return the largest changes, in order.

    Args:
        per_s: units of work per second before; None where shares are compared.
        least: reports list only larger shares of the time. 0 where they list all.
    """
    absent = None if least else Amount(0.0, None, None if per_s is None else 0.0)
    found = list[Change]()
    for name in dict.fromkeys((*was, *now)):
        before, after = was.get(name, absent), now.get(name, absent)
        sizes = [_size(one, per_s) for one in (before, after)]
        first, second = (min(least, *filter(None, sizes)) if s is None else s for s in sizes)
        if abs(second - first) >= MOVED:
            found.append(Change(name, before, after, second - first, _sure(before, after)))
    found.sort(key=lambda change: -abs(change.moved))
    return tuple(found[:MOST])


def _size(amount: Amount | None, per_s: float | None) -> float | None:
    """Return the time that something takes, as a share of all time before; None if it is
    unknown."""
    if amount is None:
        return None
    return amount.share if per_s is None or amount.each_s is None else amount.each_s * per_s


def _sure(was: Amount | None, now: Amount | None) -> bool | None:
    """Return whether the intervals of both are disjoint; None where one is unknown."""
    if was is None or now is None:
        return None
    first, second = was.interval, now.interval
    if was.each_s is not None:
        first, second = was.each_interval, now.each_interval
    if first is None or second is None:
        return None
    return max(first[0], second[0]) > min(first[1], second[1])


def _notes(was: Report, now: Report, unit: str) -> Iterator[str]:
    if not unit:
        how = " Record both with --count steps or --count module:function."
        yield (
            "Shares of the time are compared, because the reports have no counted work in common. "
            f"A share also grows if the rest shrinks.{how if was.kind == 'program' else ''}"
        )
    if was.machine != now.machine:
        yield f"The machines differ: {was.machine}; then {now.machine}."
    for which, one in (("first", was), ("second", now)):
        if one.part:
            yield f"The {which} report shows only a part of what the program does ({one.part})."


# --- In words ---------------------------------------------------------------------------------


def lines(found: Difference) -> dict[str, list[str]]:
    """Return the difference in words: rows by their label."""
    was, now, unit = found.was, found.now, found.unit
    rows = {"VERDICT": [_verdict(found)]}
    for label, one in (("WAS", was), ("NOW", now)):
        rows[label] = [f"{one.verdict}, {duration(one.seconds)} of {one.subject}"]
    if unit:
        rates = (f"{speed_words(one.work[unit].per_s)}{_range(one.work[unit].interval, 1.0)}"
                 for one in (was, now))  # fmt: skip
        rows["WORK"] = [f"{' to '.join(rates)} {unit} per second"]
    for label, changes in (
        ("PHASES", found.phases), ("CAUSES", found.causes), ("LINES", found.lines)
    ):  # fmt: skip
        rows[label] = list(_rows(changes, unit))
    rows["NOTES"] = list(found.notes)
    return rows


def _verdict(found: Difference) -> str:
    """Return which phase shrank and which grew most."""
    words = list[str]()
    if found.unit:
        was, now = (1 / one.work[found.unit].per_s for one in (found.was, found.now))
        words.append(f"{_each(found.unit)} takes {_seconds(was, now)}")
    for word, sign in (("shrank", -1), ("grew", 1)):
        sure = (one for one in found.phases if one.moved * sign > 0 and one.sure is not False)
        if (most := next(sure, None)) is not None:
            words.append(f"{most.name} {word} most ({_figures(most, found.unit)})")
    if not found.phases:
        words.append(f"no phase changed by more than {100 * MOVED:.0f} % of the time")
    elif len(words) == bool(found.unit):
        words.append("no phase is certain to have changed: the intervals overlap")
    return "; ".join(words)


def _rows(changes: Sequence[Change], unit: str) -> Iterator[str]:
    width = max((len(change.name) for change in changes if len(change.name) < 20), default=0)
    for one in changes:
        yield f"{one.name:<{width}}  {_figures(one, unit, full=True)}: {one.words}"


def _figures(change: Change, unit: str, full: bool = False) -> str:
    """Return ``72 % to 54 % of the time, 1.65 to 0.814 ms for each environment step``."""
    was, now = change.was, change.now
    if was is None or now is None:
        when = "now, not listed before" if was is None else "before, not listed now"
        return "".join(f"{percent(one.share)} of the time {when}" for one in (was, now) if one)
    shares = (
        f"{percent(one.share)}{_range(one.interval, 100.0) if full else ''}" for one in (was, now)
    )
    share = " to ".join(shares)
    if was.each_s is None or now.each_s is None:
        return f"{share} of the time"
    ranges = (was.each_interval, now.each_interval) if full else (None, None)
    each = f"{_seconds(was.each_s, now.each_s, ranges)} for each {_each(unit, '')}"
    return f"{share} of the time, {each}" if full else each


def _range(interval: Interval | None, scale: float) -> str:
    """Return an interval in brackets: `` (50 to 58)``; empty if it is unknown."""
    if interval is None:
        return ""
    low, high = (speed_words(scale * end) if scale == 1.0 else f"{scale * end:.0f}"
                 for end in interval)  # fmt: skip
    return f" ({low} to {high})"


def _seconds(was: float, now: float, ranges: Iterable[Interval | None] = (None, None)) -> str:
    """Return two times in their common unit: ``1.65 to 0.814 ms``."""
    units = ((1e6, "µs"), (1e3, "ms"))
    scale, name = next((each for each in units if max(was, now) * each[0] < 1e3), (1.0, "s"))
    shown = [
        f"{scale * seconds:.3g}"
        + ("" if known is None else f" ({scale * known[0]:.3g} to {scale * known[1]:.3g})")
        for seconds, known in zip((was, now), ranges, strict=True)
    ]
    return f"{' to '.join(shown)} {name}"


def _each(unit: str, before: str = "each ") -> str:
    """Return one unit of work in words: ``each environment step``, ``call of agent:learn``."""
    first, of, rest = unit.partition(" of ")
    return f"{before}{first.removesuffix('s')}{of}{rest}"
