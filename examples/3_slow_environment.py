"""A slow Python environment on all cores: actor processes step it while this one acts and learns.

The same from the command line:

    flatout train ppo --env 3_slow_environment:make --envs 8 --n-steps 64 --batch-size 128 \
        --placement "sampler=processes schedule=overlapped"

The processes get `make` as it is; this file is not imported again. It prints its progress, and at
last:

    mean distance from the middle 0.02
"""

import math
from typing import Any

import gymnasium as gym
import numpy as np

from flatout import PPO


class Pond(gym.Env[np.ndarray, np.ndarray]):
    """Push a float to the middle of a pond whose waves are computed in pure, slow Python."""

    def __init__(self, cells: int = 60) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._cells = cells
        self._height = [0.0] * cells
        self._speed = [0.0] * cells
        self._place = self._drift = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        phase = float(self.np_random.uniform(0, 2 * math.pi))
        self._height = [0.2 * math.sin(phase + 0.4 * i) for i in range(self._cells)]
        self._speed = [0.0] * self._cells
        self._place, self._drift = float(self.np_random.uniform(-0.8, 0.8)), 0.0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        last = self._cells - 1
        for _ in range(4):  # some steps of the wave equation
            height = self._height
            for i in range(1, last):
                pull = height[i - 1] + height[i + 1] - 2 * height[i]
                self._speed[i] = 0.995 * self._speed[i] + 0.2 * pull
            self._height = [h + s for h, s in zip(height, self._speed, strict=True)]
        i = min(max(int((self._place + 1) / 2 * last), 1), last - 1)
        slope = self._height[i + 1] - self._height[i - 1]
        self._drift = 0.9 * self._drift + 0.05 * float(action[0]) - 0.05 * slope
        self._place = min(max(self._place + self._drift, -1.0), 1.0)
        return self._observe(), -abs(self._place), False, False, {}

    def _observe(self) -> np.ndarray:
        return np.array([self._place, self._drift, self._height[self._cells // 2]], np.float32)


def make() -> gym.Env[np.ndarray, np.ndarray]:
    return gym.wrappers.TimeLimit(Pond(), max_episode_steps=100)


def main() -> None:
    agent = PPO(
        make, envs=8, n_steps=64, batch_size=128, gamma=0.95, learning_rate=1e-3, seed=1,
        placement="sampler=processes schedule=overlapped",
    )  # fmt: skip
    agent.learn(30_000, progress_bar=True)
    result = agent.evaluate(episodes=10)
    print(f"mean distance from the middle {-result.return_mean / 100:.2f}")


if __name__ == "__main__":
    main()
