"""Which actions each algorithm can choose."""

from __future__ import annotations

import numpy as np

from flatout.errors import UsageError
from flatout.types import ActionSpec, DiscreteSpec

_MOST = float(np.finfo(np.float32).max)


def refuse_actions(algorithm: str, spec: ActionSpec) -> None:
    """Refuse actions that one of Flatout's algorithms cannot choose.

    Raises:
        UsageError: Discrete actions for DDPG, TD3 and SAC, or a box without finite bounds; a box
            for DQN.
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
