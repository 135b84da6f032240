"""Unions, differences and overlaps of intervals, as arrays ``[N, 2]`` of begin and end.

All but the arguments of `union` and `nested` are disjoint and in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

NOTHING = np.empty((0, 2))


def union(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return intervals ``[M, 2]`` that cover those from ``begin [N]``, in order, to ``end [N]``."""
    if not len(begin):
        return NOTHING
    reached = np.maximum.accumulate(end)
    starts = np.flatnonzero(np.r_[True, begin[1:] > reached[:-1]])
    found = np.stack([begin[starts], reached[np.r_[starts[1:], len(begin)] - 1]], axis=1)
    return found[found[:, 1] > found[:, 0]]


def union_of(sets: Sequence[np.ndarray]) -> np.ndarray:
    """Return the union of several sets of intervals."""
    every = np.concatenate([NOTHING, *sets])
    every = every[np.argsort(every[:, 0], kind="stable")]
    return union(every[:, 0], every[:, 1])


def clip(intervals: np.ndarray, begin: float, end: float) -> np.ndarray:
    """Return the parts of intervals that lie in a window."""
    inside = intervals.clip(begin, end)
    return inside[inside[:, 1] > inside[:, 0]]


def overlap(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the intersection of two sets of times."""
    return union(*divided(one, other)[0].T)


def without(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the first set of times without the second."""
    spans, in_one, in_other = _cut(one, other[meeting(other, one)])
    return union(*spans[in_one & ~in_other].T)


def divided(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pieces of the first set of intervals that lie in the second set.

    Returns:
        The pieces ``[N, 2]``, and the position ``[N]`` of the interval that each is a piece of.
    """
    met = np.flatnonzero(meeting(one, other))
    one = one[met]
    spans, in_one, in_other = _cut(one, other)
    spans = spans[in_one & in_other]
    return spans, met[np.searchsorted(one[:, 0], spans[:, 0], "right") - 1]


def _cut(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the time between each two neighbouring ends of some intervals, and whether it lies in
    the first set, and in the second."""
    points = np.unique(np.concatenate([one.ravel(), other.ravel()]))
    middles = (points[1:] + points[:-1]) / 2

    def inside(intervals: np.ndarray) -> np.ndarray:
        begun, ended = (np.searchsorted(intervals[:, i], middles, "right") for i in (0, 1))
        return begun > ended

    return np.stack([points[:-1], points[1:]], axis=1), inside(one), inside(other)


def meeting(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return whether each interval of the first set overlaps with the second set: ``[N]``."""
    first = np.searchsorted(one[:, 1], other[:, 0], "right")
    last = np.searchsorted(one[:, 0], other[:, 1], "left")
    met = np.zeros(len(one) + 1, int)
    np.add.at(met, first, 1)
    np.add.at(met, np.maximum(first, last), -1)
    return np.cumsum(met)[:-1] > 0


def nested(begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divide time among events that lie within each other, in order of their beginnings.

    Returns:
        Disjoint intervals ``[N, 2]``, the innermost event ``[N]`` of each, and the event around
        each event ``[M]``, -1 if there is none.
    """
    ends, at = end.tolist(), 0.0
    open_events, around = list[int](), list[int]()
    spans, inner = list[tuple[float, float]](), list[int]()
    for event, start in enumerate([*begin.tolist(), float("inf")]):
        while open_events:
            innermost = open_events[-1]
            stop = min(ends[innermost], start)
            if stop > at:
                spans.append((at, stop))
                inner.append(innermost)
                at = stop
            if ends[innermost] > start:
                break
            open_events.pop()
        at = max(at, start)
        around.append(open_events[-1] if open_events else -1)
        open_events.append(event)
    return np.array(spans).reshape(-1, 2), np.array(inner, int), np.array(around[:-1], int)


def length(intervals: np.ndarray) -> float:
    """Return the total length of disjoint intervals."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def covered(intervals: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return how much of each bin between two `edges` some intervals cover."""
    if not len(intervals):
        return np.zeros(len(edges) - 1)
    lengths = intervals[:, 1] - intervals[:, 0]
    before = np.concatenate([[0.0], np.cumsum(lengths)])
    at = np.searchsorted(intervals[:, 0], edges, "right") - 1
    last = np.maximum(at, 0)
    within = np.minimum(edges - intervals[last, 0], lengths[last])
    return np.diff(np.where(at < 0, 0.0, before[last] + within))


def segments(rows: Mapping[str, np.ndarray], edges: np.ndarray) -> list[tuple[int, int, str]]:
    """Divide time into bins, and give each bin to the row that covers most of it, or to none.

    Returns:
        (first bin, bin after the last, row's name) for each run of bins of one row, in order.
    """
    names = list(rows)
    filled = np.stack([*(covered(rows[name], edges) for name in names), np.diff(edges)])
    filled[-1] -= filled[:-1].sum(axis=0)
    winner = filled.argmax(axis=0)
    cuts = [0, *(np.flatnonzero(np.diff(winner)) + 1).tolist(), len(winner)]
    return [(a, b, names[winner[a]]) for a, b in pairwise(cuts) if winner[a] < len(names)]
