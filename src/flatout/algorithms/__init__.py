"""Algorithms: pure functions that know shapes, never devices, processes or environments."""

from flatout.algorithms.base import Algorithm

__all__ = ["Algorithm"]
