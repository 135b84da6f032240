"""MiniGrid's test of memory: ``minigrid_env:memory_s7``. It needs the package minigrid."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

LARGEST = 10
"""The largest number of an object, a colour or a state in MiniGrid's cells."""


class Cells(gym.ObservationWrapper[Any, Any, Any]):
    """MiniGrid's view of 7x7 cells, without its mission and direction.

    MiniGrid declares cells as bytes. Networks for one-hot cells need their largest value.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(0, LARGEST, (7, 7, 3), np.uint8)

    def observation(self, observation: Any) -> Any:
        """Return the cells."""
        return observation["image"]


def memory_s7(render_mode: str | None = None) -> gym.Env[Any, Any]:
    """Return MemoryS7: an object in the first room says which of two objects is the goal.

    The right object gives 1, less up to 0.9 for the number of steps; the wrong one gives 0. The
    share of episodes that end at the right object is therefore at least the mean return.
    """
    return Cells(gym.make("minigrid:MiniGrid-MemoryS7-v0", render_mode=render_mode))
