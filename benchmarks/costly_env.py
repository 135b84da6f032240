"""Environments whose steps and resets cost what they are told to, for measuring placements."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

RARE = 0.05  # share of the steps that take longer


class Costly(gym.Env[np.ndarray, np.int64]):
    """Random observations; each step computes or sleeps for a while.

    Args:
        work_ms: milliseconds of a core's time per step, on average.
        sleep_ms: milliseconds of waiting per step, on average.
        tail: how many times longer one step in twenty takes than the others; 1 is none.
        size: of an observation.
        reset_work_ms, reset_sleep_ms: the same of a reset.
        length: steps of an episode.
    """

    def __init__(
        self, work_ms: float = 0.0, sleep_ms: float = 0.0, tail: float = 1.0, size: int = 8,
        reset_work_ms: float = 0.0, reset_sleep_ms: float = 0.0, length: int = 200,
    ) -> None:  # fmt: skip
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (size,), np.float32)
        self.action_space = gym.spaces.Discrete(4)
        # The mean stays, however long the tail is.
        usual = 1.0 / (1.0 - RARE + RARE * tail)
        self._factors = (usual, usual * tail)
        self._work, self._sleep, self._steps = work_ms / 1e3, sleep_ms / 1e3, 0
        self._reset_work, self._reset_sleep = reset_work_ms / 1e3, reset_sleep_ms / 1e3
        self._length = length

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        _take(self._reset_work, self._reset_sleep)
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        factor = self._factors[self.np_random.random() < RARE]
        _take(self._work * factor, self._sleep * factor)
        self._steps += 1
        return self._observe(), float(action == 0), False, self._steps >= self._length, {}

    def _observe(self) -> np.ndarray:
        return self.np_random.standard_normal(self.observation_space.shape).astype(np.float32)


def _take(work_s: float, sleep_s: float) -> None:
    """Compute and sleep for some seconds."""
    if work_s:
        end = time.thread_time() + work_s
        while time.thread_time() < end:
            sum(range(200))
    if sleep_s:
        time.sleep(sleep_s)


def make(**settings: Any) -> Costly:
    """For ``--env costly_env:make --env-kwargs work_ms=1.0``."""
    return Costly(**settings)
