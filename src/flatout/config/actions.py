"""The check of an action space, when an algorithm is built or an agent opens an environment, and
what to say about its range."""

from __future__ import annotations

import math

import numpy as np

from flatout.actions import boxes
from flatout.errors import UsageError
from flatout.types import ActionSpec, ContinuousSpec

_LARGEST = float(np.finfo(np.float32).max)
_MIN_VALUES = 16
"""Minimum number of different single-precision values between the two bounds of an action."""


def refuse_actions(algorithm: str, spec: ActionSpec) -> None:
    """Refuse an action space from which a built-in algorithm cannot choose actions.

    Raises:
        UsageError: DQN gets others than Discrete actions; or DDPG, TD3, SAC or TQC gets no Box,
            a Box without finite bounds, or bounds too close together for single precision.
    """
    if algorithm == "dqn" and spec.kind != "Discrete":
        others = "sac, td3, ddpg or ppo" if spec.kind == "Box" else "ppo or a2c"
        raise UsageError(f"dqn needs Discrete actions; use {others} for a {spec.kind} space.")
    if algorithm not in ("ddpg", "td3", "sac", "tqc"):
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


FARTHEST, LEAST_INSIDE = 5.0, 0.1
"""Limits of `unsuited_range`: how many standard deviations a bound may be away from 0, and which
share of the first actions must lie within the bounds."""


UNSCALED = ("ppo", "a2c", "genetic")
"""The algorithms that choose Box actions in the environment's own units, at first around 0. DDPG,
TD3, SAC and TQC scale theirs to the bounds."""


def unsuited_range(spec: ActionSpec, deviation: float = 1.0) -> str:
    """Return why one of the `UNSCALED` algorithms would learn badly because of the range of its
    actions, as a sentence without a full stop; an empty string if the range suits them.

    Args:
        spec: the actions.
        deviation: the standard deviation of the first actions.
    """
    for box in boxes(spec):
        for low, high in zip(box.low, box.high, strict=True):
            why = _unsuited(low / deviation, high / deviation) if low < high else ""
            if why:
                finite = bool(np.isfinite((box.low, box.high)).all())
                rescales = box is spec and finite and box.dtype.startswith("float")
                wrapper = "RescaleAction(env, -1.0, 1.0)" if rescales else "TransformAction"
                return (
                    f"actions range from {low:g} to {high:g}, but the first ones tried lie "
                    f"around 0, with a standard deviation of {deviation:g}: {why}; use "
                    f"gymnasium.wrappers.{wrapper} so that they range from -1 to 1"
                )
    return ""


def _unsuited(low: float, high: float) -> str:
    """Return what is wrong with bounds for a standard normal distribution, as a phrase."""
    inside = (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))) / 2
    if inside < LEAST_INSIDE:
        return f"{1 - inside:.0%} of them are clipped to a bound"
    farthest = max((abs(bound) for bound in (low, high) if math.isfinite(bound)), default=0.0)
    if farthest > FARTHEST:
        return "most of the range is never tried"
    return ""
