"""Stable-Baselines3's function that evaluates an agent."""

from __future__ import annotations

from typing import Any

from flatout.api import evaluation
from flatout.sb3.common.vec_env import VecEnv, environment_and_settings


def evaluate_policy(model: Any, env: Any = None, *given: Any, **others: Any) -> tuple[Any, Any]:
    """Return mean and standard deviation of returns; see `flatout.evaluate_policy`.

    Args:
        env: an environment, its name, a factory or a `VecEnv`.
        given, others: the other arguments. `use_masking`: ignored, masks are always obeyed.
    """
    others.pop("use_masking", None)
    if isinstance(env, VecEnv):
        env = environment_and_settings(env)[0]
    return evaluation.evaluate_policy(model, env, *given, **others)
