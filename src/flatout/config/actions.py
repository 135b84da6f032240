"""The check of an action space, when an algorithm is built or an agent opens an environment."""

from __future__ import annotations

import numpy as np

from flatout.errors import UsageError
from flatout.types import ActionSpec, ContinuousSpec

_LARGEST = float(np.finfo(np.float32).max)
_MIN_VALUES = 16
"""Minimum number of different single-precision values between the two bounds of an action."""


def refuse_actions(algorithm: str, spec: ActionSpec) -> None:
    """Refuse an action space from which a built-in algorithm cannot choose actions.

    Raises:
        UsageError: DQN gets others than Discrete actions; or DDPG, TD3 or SAC gets no Box, a Box
            without finite bounds, or bounds too close together for single precision.
    """
    if algorithm == "dqn" and spec.kind != "Discrete":
        others = "sac, td3, ddpg or ppo" if spec.kind == "Box" else "ppo or a2c"
        raise UsageError(f"dqn needs Discrete actions; use {others} for a {spec.kind} space.")
    if algorithm not in ("ddpg", "td3", "sac"):
        return
    if not isinstance(spec, ContinuousSpec):
        others = "dqn or ppo" if spec.kind == "Discrete" else "ppo or a2c"
        raise UsageError(f"{algorithm} needs Box actions; use {others} for a {spec.kind} space.")
    low, high = np.asarray(spec.low, np.float64), np.asarray(spec.high, np.float64)
    if not ((low >= -_LARGEST) & (low < high) & (high <= _LARGEST)).all():
        raise UsageError(
            f"{algorithm} needs actions with finite bounds, low below high, but this "
            f"environment's are {spec.low} to {spec.high}; use ppo or a2c, or change its "
            "action_space, for example with gymnasium.wrappers.TransformAction."
        )
    values = (high - low) / np.spacing(np.maximum(abs(low), abs(high)).astype(np.float32))
    if (too_narrow := np.flatnonzero(values < _MIN_VALUES)).size:
        at = int(too_narrow[0])
        raise UsageError(
            f"{algorithm} computes actions in single precision, which has fewer than {_MIN_VALUES} "
            f"numbers between {spec.low[at]!r} and {spec.high[at]!r}, the bounds of action {at}; "
            "let the environment take actions from -1 to 1 and scale them itself."
        )
