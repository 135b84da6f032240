"""Garbage collections of a process, as the probe has counted them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flatout_explain.timespans import interpolated


@dataclass(frozen=True)
class Collections:
    """Garbage collections of a process until `t`, by generation."""

    t: float
    times: tuple[int, ...]
    seconds: tuple[float, ...]
    asked: float  # seconds of those that the program called for
    # seconds by the (code, line) at which they began, since the last count
    places: dict[tuple[int, int], float] = field(default_factory=dict)


def collections(rows: Iterable[dict[str, Any]], started: float) -> list[Collections]:
    """Return the counts in the probe's rows of a process that started at this time."""
    return [
        Collections(
            started + row["t"], tuple(row["times"]), tuple(row["seconds"]), row["asked"],
            {(code, line): seconds for code, line, seconds in row["places"]},
        )
        for row in rows
    ]  # fmt: skip


def between(counted: Sequence[Collections], begin: float, end: float) -> Collections:
    """Return the collections between two moments; a count between two rows is interpolated."""
    known = [row.t for row in counted]
    times, seconds, (asked,) = (
        [interpolated(end, known, each) - interpolated(begin, known, each) for each in columns]
        for columns in (
            zip(*(row.times for row in counted), strict=True),
            zip(*(row.seconds for row in counted), strict=True),
            [[row.asked for row in counted]],
        )
    )
    places: defaultdict[tuple[int, int], float] = defaultdict(float)
    for row in counted:
        for place, spent in row.places.items() if begin < row.t <= end else ():
            places[place] += spent
    return Collections(end, tuple(map(round, times)), tuple(seconds), asked, dict(places))


def collecting(counted: Sequence[Collections], begin: float, end: float) -> float:
    """Return the share of the time between two moments that collections take, as far as they were
    counted."""
    begin, end = max(begin, counted[0].t), min(end, counted[-1].t)
    if end <= begin:
        return 0.0
    return min(sum(between(counted, begin, end).seconds) / (end - begin), 1.0)
