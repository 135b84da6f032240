"""Unions, differences and overlaps of intervals, as arrays ``[N, 2]`` of begin and end.

All but the arguments of `union` are disjoint and in order.
"""

from __future__ import annotations

import numpy as np


def union(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Intervals ``[M, 2]`` that cover those from ``begin [N]``, in order, to ``end [N]``."""
    if not len(begin):
        return np.empty((0, 2))
    reached = np.maximum.accumulate(end)
    starts = np.flatnonzero(np.r_[True, begin[1:] > reached[:-1]])
    found = np.stack([begin[starts], reached[np.r_[starts[1:], len(begin)] - 1]], axis=1)
    return found[found[:, 1] > found[:, 0]]


def clip(intervals: np.ndarray, begin: float, end: float) -> np.ndarray:
    """The parts of intervals that lie in a window."""
    inside = intervals.clip(begin, end)
    return inside[inside[:, 1] > inside[:, 0]]


def overlap(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The intersection of two sets of times."""
    return _pieces(one, other, True)


def without(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The first set of times without the second."""
    return _pieces(one, other, False)


def _pieces(one: np.ndarray, other: np.ndarray, in_other: bool) -> np.ndarray:
    points = np.unique(np.concatenate([one.ravel(), other.ravel()]))
    middles = (points[1:] + points[:-1]) / 2

    def inside(intervals: np.ndarray) -> np.ndarray:
        begun, ended = (np.searchsorted(intervals[:, i], middles, "right") for i in (0, 1))
        return begun > ended

    chosen = inside(one) & (inside(other) == in_other)
    return union(points[:-1][chosen], points[1:][chosen])


def length(intervals: np.ndarray) -> float:
    """Total length."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())
