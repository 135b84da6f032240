"""Goal environments: a game of bits, a point that moves to a goal, and faulty ones."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class BitFlip(gym.Env[Any, Any]):
    """Bits to be flipped one by one until they equal the goal (Andrychowicz et al., 2017, section
    3.1). The reward is -1 until then, so that without hindsight nothing is learned from n bits if
    random play never finds one goal of 2^n.

    Args:
        bits: n; an episode has at most n steps.
        ends: whether an episode ends when the goal is reached.
    """

    def __init__(self, bits: int = 4, ends: bool = True) -> None:
        one = spaces.MultiBinary(bits)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict(dict.fromkeys(names, one))
        self.action_space = spaces.Discrete(bits)
        self.ends = ends

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        size = self.action_space.n
        self.state, self.goal = self.np_random.integers(0, 2, (2, size), np.int8)
        self.time = 0
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.state[action] ^= 1
        self.time += 1
        reward = float(self.compute_reward(self.state, self.goal, {}))
        reached = reward == 0.0
        over = self.time >= self.action_space.n
        return self._observed(), reward, reached and self.ends, over, {"is_success": reached}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -(achieved_goal != desired_goal).any(-1).astype(np.float32)

    def _observed(self) -> dict[str, np.ndarray]:
        state = self.state.copy()
        return {"observation": state, "achieved_goal": state.copy(), "desired_goal": self.goal}


class Reach(gym.Env[Any, Any]):
    """A point that moves by up to 0.2 in each direction towards a goal; episodes are truncated."""

    def __init__(self, steps: int = 12) -> None:
        place = spaces.Box(-1.0, 1.0, (2,), np.float64)
        self.observation_space = spaces.Dict(
            {"observation": place, "achieved_goal": place, "desired_goal": place}
        )
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.steps = steps

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.uniform(-1, 1, (2, 2))
        self.time = 0
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = np.clip(self.place + 0.2 * np.asarray(action, np.float64), -1, 1)
        self.time += 1
        reward = float(self.compute_reward(self.place, self.goal, {}))
        return self._observed(), reward, False, self.time >= self.steps, {"is_success": not reward}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        away = np.linalg.norm(achieved_goal - desired_goal, axis=-1)
        return -(away > 0.2).astype(np.float32)

    def _observed(self) -> dict[str, np.ndarray]:
        place = self.place.copy()
        return {"observation": place, "achieved_goal": place, "desired_goal": self.goal}


class OneByOne(BitFlip):
    """A game whose `compute_reward` takes one pair of goals only."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return 0.0 if np.array_equal(achieved_goal, desired_goal) else -1.0


class OtherRewards(BitFlip):
    """A game whose steps give other rewards than `compute_reward`."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, *ends, info = super().step(action)
        return obs, reward - 1.0, ends[0], ends[1], info


class Mixing(BitFlip):
    """A game whose `compute_reward` computes one reward from all pairs of a batch."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        found = super().compute_reward(achieved_goal, desired_goal, info)
        return np.full_like(found, found.mean())


class Rewardless(BitFlip):
    """A game without `compute_reward`."""

    compute_reward = None  # type: ignore[assignment]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.state[action] ^= 1
        self.time += 1
        return self._observed(), -1.0, False, self.time >= self.action_space.n, {}
