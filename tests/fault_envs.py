"""Environments that fault tests run: slow ones, and one that stops answering."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np


class Sleepy(gym.Env[np.ndarray, np.int64]):
    """A counter whose every step sleeps; episodes last 20 steps and are cut, not terminated."""

    def __init__(self, seconds: float = 0.02) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._seconds = seconds
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        self._step += 1
        return self._observe(), float(action), False, self._step >= 20, {}

    def _observe(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


def sleepy(seconds: float = 0.02) -> gym.Env[Any, Any]:
    return Sleepy(seconds)
