"""Two small environments with Dict observations, for Flatout and for its peers.

``dict_env:Dock-v0`` observes a camera image and a vector, ``dict_env:SplitCartPole-v0`` the two
halves of CartPole's vector. Both are cheap to step.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

SIZE = 36
"""Rows and columns of the camera; the convolutions of Mnih et al. (2015) need as many."""


class Dock(gym.Env[Any, Any]):
    """Steer a boat to a buoy that only the camera shows; the vector holds its place and speed."""

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Dict({
            "camera": gym.spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8),
            "state": gym.spaces.Box(-np.inf, np.inf, (4,), np.float32),
        })  # fmt: skip
        self.action_space = gym.spaces.Discrete(4)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Put the boat and the buoy at random places."""
        super().reset(seed=seed)
        self._place, self._speed = self.np_random.uniform(-0.8, 0.8, 2), np.zeros(2)
        self._buoy = self.np_random.uniform(-0.8, 0.8, 2)
        self._image = np.zeros((SIZE, SIZE, 1), np.uint8)
        row, column = ((self._buoy + 1) / 2 * (SIZE - 3)).astype(int)
        self._image[row : row + 3, column : column + 3] = 255
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Push the boat in one of four directions."""
        axis, sign = divmod(int(action), 2)
        self._speed *= 0.9
        self._speed[axis] += 0.05 * (2 * sign - 1)
        self._place = np.clip(self._place + self._speed, -1, 1)
        distance = float(np.abs(self._place - self._buoy).sum())
        return self._observe(), -distance, distance < 0.1, False, {}

    def _observe(self) -> dict[str, np.ndarray]:
        state = np.concatenate([self._place, self._speed]).astype(np.float32)
        return {"camera": self._image.copy(), "state": state}


class SplitCartPole(CartPoleEnv):
    """CartPole whose observation is a Dict of the cart's and the pole's numbers."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        low, high = self.observation_space.low, self.observation_space.high
        self.observation_space: Any = gym.spaces.Dict({
            "cart": gym.spaces.Box(low[:2], high[:2]), "pole": gym.spaces.Box(low[2:], high[2:]),
        })  # fmt: skip

    def reset(self, **settings: Any) -> tuple[Any, dict[str, Any]]:
        """As CartPole's."""
        obs, info = super().reset(**settings)
        return {"cart": obs[:2], "pole": obs[2:]}, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As CartPole's."""
        obs, *rest = super().step(action)
        return {"cart": obs[:2], "pole": obs[2:]}, *rest


gym.register("Dock-v0", Dock, max_episode_steps=100)
gym.register("SplitCartPole-v0", SplitCartPole, max_episode_steps=500)
