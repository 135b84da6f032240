"""Algorithms, the last part of the data flow: pure functions that know shapes, never devices,
processes or environments. `flatout.learner.learn_step` calls their updates."""

from flatout.algorithms.base import Algorithm

__all__ = ["Algorithm"]
