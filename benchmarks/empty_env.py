"""Environments for measuring everything but themselves."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

SHAPES: dict[str, tuple[tuple[int, ...], str]] = {
    "vector": ((4,), "float32"),
    "image": ((84, 84, 4), "uint8"),
}


class Empty(gym.Env[np.ndarray, np.int64]):
    """Returns the same observation for ever.

    Args:
        kind: of observation, of `SHAPES`.
        burn: seconds of computing per step.
        sleep: seconds of waiting per step.
        length: of an episode, which is cut.
    """

    def __init__(
        self, kind: str = "vector", burn: float = 0.0, sleep: float = 0.0, length: int = 10**9
    ) -> None:
        shape, dtype = SHAPES[kind]
        high = 255 if dtype == "uint8" else 1.0
        self.observation_space = gym.spaces.Box(0, high, shape, np.dtype(dtype).type)
        self.action_space = gym.spaces.Discrete(2)
        self._obs = np.zeros(shape, dtype)
        self._burn, self._sleep, self._length = burn, sleep, length
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self._step = 0
        return self._obs, {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._burn:
            end = time.perf_counter() + self._burn
            while time.perf_counter() < end:
                pass
        if self._sleep:
            time.sleep(self._sleep)
        self._step += 1
        return self._obs, 1.0, False, self._step >= self._length, {}


def make(**settings: Any) -> Empty:
    """For ``--env empty_env:make --env-kwargs ...``."""
    return Empty(**settings)
