"""Which actions each algorithm can choose."""

from __future__ import annotations

import numpy as np

from flatout.errors import UsageError
from flatout.types import ActionSpec, DiscreteSpec

_MOST = float(np.finfo(np.float32).max)
_FEWEST = 16
"""Least number of different actions in single precision between two bounds."""


def refuse_actions(algorithm: str, spec: ActionSpec) -> None:
    """Refuse actions that one of Flatout's algorithms cannot choose.

    Raises:
        UsageError: Discrete actions for DDPG, TD3 and SAC, a box without finite bounds, or one
            too narrow for single precision; a box for DQN.
    """
    if algorithm == "dqn" and not isinstance(spec, DiscreteSpec):
        raise UsageError("dqn needs Discrete actions; use sac, td3, ddpg or ppo for a Box.")
    if algorithm not in ("ddpg", "td3", "sac"):
        return
    if isinstance(spec, DiscreteSpec):
        raise UsageError(f"{algorithm} needs Box actions; use dqn or ppo for Discrete ones.")
    low, high = np.asarray(spec.low, np.float64), np.asarray(spec.high, np.float64)
    if not ((low >= -_MOST) & (low < high) & (high <= _MOST)).all():
        raise UsageError(
            f"{algorithm} needs actions with finite bounds, low below high, but this "
            f"environment's are {spec.low} to {spec.high}; change its action_space, for "
            "example with gymnasium.wrappers.TransformAction."
        )
    steps = (high - low) / np.spacing(np.maximum(abs(low), abs(high)).astype(np.float32))
    if (narrow := np.flatnonzero(steps < _FEWEST)).size:
        at = int(narrow[0])
        raise UsageError(
            f"{algorithm} computes actions in single precision, and has fewer than {_FEWEST} "
            f"numbers between {spec.low[at]!r} and {spec.high[at]!r}, the bounds of action {at}; "
            "let the environment take actions from -1 to 1 and scale them itself."
        )
