"""Intervals of time and values over time, in plain Python: small sets, without NumPy.

`flatout_explain.trace.intervals` has what millions of a trace's events need.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise


def union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return disjoint intervals, in order, that cover some (begin, end); empty ones are dropped."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return [(begin, end) for begin, end in found if end > begin]


def covered(intervals: Sequence[tuple[float, float]], edges: Sequence[float]) -> list[float]:
    """Return how much of each bin between two `edges` some disjoint intervals, in order, cover."""
    begins = [begin for begin, _ in intervals]
    lengths = [end - begin for begin, end in intervals]
    before = [0.0, *accumulate(lengths)]

    def until(edge: float) -> float:
        at = bisect_right(begins, edge) - 1
        return 0.0 if at < 0 else before[at] + min(edge - begins[at], lengths[at])

    return [after - earlier for earlier, after in pairwise(map(until, edges))]


def interpolated(t: float, times: Sequence[float], values: Sequence[float]) -> float:
    """Return the value at a time, on straight lines between the known ones (at least one); before
    the first time and after the last one the value is that of the nearest."""
    at = bisect_right(times, t) - 1
    if at < 0:
        return values[0]
    if at == len(times) - 1:
        return values[-1]
    slope = (values[at + 1] - values[at]) / (times[at + 1] - times[at])
    return values[at] + slope * (t - times[at])


def weighted_mean(pairs: Iterable[tuple[float | None, float]]) -> float | None:
    """Return the mean of the known values, by weight; None where there is none."""
    known = [(value, weight) for value, weight in pairs if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None
