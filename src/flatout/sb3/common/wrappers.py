"""sb3-contrib's wrapper for action masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np


class ActionMasker(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose allowed actions are given by a function, or by a method's name."""

    def __init__(self, env: gym.Env[Any, Any], action_mask_fn: str | Callable[[Any], Any]) -> None:
        super().__init__(env)
        function = action_mask_fn
        self._bound = isinstance(function, str)
        self._masks: Callable[..., Any] = (
            env.get_wrapper_attr(function) if isinstance(function, str) else function
        )

    def action_masks(self) -> np.ndarray:
        """Return 1 for each allowed action and 0 for the others."""
        return np.asarray(self._masks() if self._bound else self._masks(self.env))


def get_action_masks(env: Any) -> np.ndarray:
    """Return the mask of the present step."""
    return np.asarray(env.get_wrapper_attr("action_masks")())


def is_masking_supported(env: Any) -> bool:
    """Return whether an environment has masks."""
    return isinstance(env, gym.Env) and env.has_wrapper_attr("action_masks")
