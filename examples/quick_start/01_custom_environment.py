"""Your own environment."""

import gymnasium as gym
import numpy as np

from flatout import PPO


class Corridor(gym.Env):
    """Walk right to the eighth cell within 50 steps."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = self.time = 0
        return self.observe(), {}

    def step(self, action):
        self.cell, self.time = max(self.cell + (1 if action else -1), 0), self.time + 1
        there = self.cell == 8
        return self.observe(), float(there), there, self.time == 50, {"is_success": there}

    def observe(self):
        return np.array([self.cell / 8], np.float32)


agent = PPO(Corridor, n_steps=256).learn(1_024)
print(agent.evaluate(5).return_mean)
