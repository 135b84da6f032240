"""CartPole without velocities, for Flatout and for its peer:
``memory_env:CartPoleWithoutVelocities-v0``."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.registration import register


class CartPoleWithoutVelocities(CartPoleEnv):
    """CartPole of which only the cart's place and the pole's angle are seen."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        space = self.observation_space
        self.observation_space = gym.spaces.Box(space.low[::2], space.high[::2])

    def reset(self, **settings: Any) -> tuple[Any, dict[str, Any]]:
        """As CartPole's."""
        obs, info = super().reset(**settings)
        return obs[::2], info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As CartPole's."""
        obs, *rest = super().step(action)
        return obs[::2], *rest


register("CartPoleWithoutVelocities-v0", CartPoleWithoutVelocities, max_episode_steps=500)
