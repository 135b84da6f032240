"""Hindsight replay: bits are flipped until they equal a goal, which random play almost never finds.

It trains DQN with hindsight, and without it, where hardly any reward differs from -1. It prints:

    hindsight=4: 100% of goals reached
    hindsight=0: 0% of goals reached
"""

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from flatout import DQN


class BitFlip(gym.Env):
    """An action flips one bit (Andrychowicz et al., 2017, section 3.1)."""

    def __init__(self, bits: int = 12) -> None:
        one = spaces.MultiBinary(bits)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict(dict.fromkeys(names, one))
        self.action_space = spaces.Discrete(bits)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bits, self.goal = self.np_random.integers(0, 2, (2, self.action_space.n), np.int8)
        self.time = 0
        return self.observed(), {}

    def step(self, action):
        self.bits[action] ^= 1
        self.time += 1
        reward = float(self.compute_reward(self.bits, self.goal, {}))
        reached, over = reward == 0.0, self.time == self.action_space.n
        return self.observed(), reward, reached, over, {"is_success": reached}

    def compute_reward(self, achieved_goal, desired_goal, info):
        """Return the rewards of goals [B, bits], or of one pair of goals."""
        return -np.any(achieved_goal != desired_goal, axis=-1).astype(np.float32)

    def observed(self):
        bits = self.bits.copy()
        return {"observation": bits, "achieved_goal": bits, "desired_goal": self.goal}


SETTINGS = {
    "envs": 4, "hidden": [256], "learning_rate": 1e-3, "batch_size": 128, "learning_starts": 500,
    "train_freq": 8, "gradient_steps": 4, "gamma": 0.98, "buffer_size": 100_000,
    "target_update_interval": 200, "exploration_fraction": 0.3, "exploration_final_eps": 0.02,
}  # fmt: skip

if __name__ == "__main__":
    for hindsight in (4, 0):
        agent = DQN(BitFlip, hindsight=hindsight, **SETTINGS).learn(20_000)
        print(f"hindsight={hindsight}: {agent.evaluate(100).success_rate:.0%} of goals reached")
