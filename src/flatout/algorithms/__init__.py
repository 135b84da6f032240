"""Algorithms, the last part of the data flow. They are pure functions, which know shapes but no
devices, processes or environments. `flatout.engine.learn` calls their updates."""

from flatout.algorithms.base import Algorithm

__all__ = ["Algorithm"]
