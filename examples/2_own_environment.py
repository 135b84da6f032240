"""Your own environment: a class, a factory, and two ways to train on it.

From the command line, in this folder:  flatout train ppo --env 2_own_environment:make
(any importable module:factory works).

It prints its progress, and at last:

    mean error 0.17 degrees
"""

from typing import Any

import gymnasium as gym
import numpy as np

from flatout import PPO


class Thermostat(gym.Env[np.ndarray, np.ndarray]):
    """Keep a room at 20 degrees; the action is heating power, the observation the error."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
        self._room = self._outside = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._room, self._outside = self.np_random.uniform(5, 25), self.np_random.uniform(-5, 15)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._room += 0.1 * (self._outside - self._room) + 3.0 * float(action[0])
        return self._observe(), -abs(self._room - 20.0), False, False, {}

    def _observe(self) -> np.ndarray:
        return np.array([self._room - 20.0, self._outside - 20.0], np.float32) / 10


def make() -> gym.Env[np.ndarray, np.ndarray]:
    return gym.wrappers.TimeLimit(Thermostat(), max_episode_steps=100)


def main() -> None:
    agent = PPO(make, envs=8, n_steps=100, batch_size=100, gamma=0.9, seed=1)
    agent.learn(80_000, progress_bar=True)
    result = agent.evaluate(episodes=10)
    print(f"mean error {-result.return_mean / 100:.2f} degrees")


if __name__ == "__main__":
    main()
