"""Garbage collections of a process, as the probe has counted them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Collections:
    """Garbage collections of a process until `t`, by generation."""

    t: float
    times: tuple[int, ...]
    seconds: tuple[float, ...]
    asked: float  # seconds of those that the program called for


def collections(rows: Iterable[dict[str, Any]], started: float) -> list[Collections]:
    """Return the counts in the probe's rows of a process that started at this time."""
    return [
        Collections(started + row["t"], tuple(row["times"]), tuple(row["seconds"]), row["asked"])
        for row in rows
    ]


def collected(rows: Iterable[dict[str, Any]]) -> dict[tuple[int, int], float]:
    """Sum up the seconds of collections by the (code, line) at which they began."""
    places: defaultdict[tuple[int, int], float] = defaultdict(float)
    for row in rows:
        for code, line, seconds in row["places"]:
            places[code, line] += seconds
    return dict(places)


def collecting(counted: Sequence[Collections], begin: float, end: float) -> float:
    """Return the share of the time between two moments that collections take, as far as they were
    counted; a count between two rows is interpolated."""
    rows = [(row.t, sum(row.seconds)) for row in counted]
    begin, end = max(begin, rows[0][0]), min(end, rows[-1][0])
    if end <= begin:
        return 0.0

    def until(t: float) -> float:
        for (a, low), (b, high) in pairwise(rows):
            if a <= t <= b:
                return low + (high - low) * (t - a) / ((b - a) or 1.0)
        return rows[-1][1]

    return min((until(end) - until(begin)) / (end - begin), 1.0)
