"""Environments so small that their solutions are known and are learned in seconds."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

MOVES = spaces.Discrete(3, start=5)
BOX = spaces.Box(np.array([-1.0, 2.1]), np.array([3.0, 2.5]), dtype=np.float64)
"""A box that is not symmetric and has bounds that float32 cannot represent exactly."""
GOALS = np.array([[0.0, 2.4], [2.0, 2.2]])
"""The best action of each context in `BOX`."""
CONTEXTS = np.eye(2, dtype=np.float32)
"""The observations of a bandit's two contexts."""


class Bandit(gym.Env[Any, Any]):
    """A contextual bandit: episodes have one step, and the episode's seed decides the context.

    With `MOVES`, action 6 + context gives reward 1 and the others 0. With `BOX`, the reward is
    minus the squared distance from the context's goal, with each component divided by half its
    range.

    Args:
        action_space: `MOVES` or `BOX`; an action outside it is an error.
    """

    def __init__(self, action_space: gym.Space[Any] = MOVES) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = action_space
        self.context = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.context = int(self.np_random.integers(2))
        return CONTEXTS[self.context], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action} is not in {self.action_space}"
        if isinstance(self.action_space, spaces.Box):
            away = (action - GOALS[self.context]) / ((BOX.high - BOX.low) / 2)
            reward = -float(np.square(away).sum())
        else:
            reward = float(action == 6 + self.context)
        return CONTEXTS[self.context], reward, True, False, {}


class NeedsOSMesa(Bandit):
    """A `Bandit` that cannot be made with ``MUJOCO_GL=osmesa``, like MuJoCo's environments if that
    rendering library is missing."""

    def __init__(self) -> None:
        if os.environ.get("MUJOCO_GL") == "osmesa":  # PyOpenGL's exception where it is missing
            raise AttributeError("'NoneType' object has no attribute 'glGetError'")
        super().__init__()


class Clock(gym.Env[Any, Any]):
    """An environment with reward 1 for every action, constant observations, and episodes of one
    step.

    Args:
        ends: how episodes end: ``"terminated"`` (the value after it is 0) or ``"truncated"``.
        action_space: `MOVES` or `BOX`.
    """

    def __init__(self, ends: str, action_space: gym.Space[Any] = MOVES) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = action_space
        self.ends = ends

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.ones(1, np.float32), 1.0, self.ends == "terminated", self.ends == "truncated", {}
