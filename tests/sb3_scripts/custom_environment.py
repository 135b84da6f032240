"""A `gymnasium.Env` of the user's, `check_env`, training on the object."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3 import A2C
from stable_baselines3.common.env_checker import check_env


class LeftRight(gym.Env):
    """A line of ten cells; reach the left end."""

    def __init__(self, size=10):
        super().__init__()
        self.size, self.cell, self.steps = size, size - 1, 0
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(0, size, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell, self.steps = self.size - 1, 0
        return np.array([self.cell], np.float32), {}

    def step(self, action):
        self.cell = int(np.clip(self.cell + (1 if action == 1 else -1), 0, self.size))
        self.steps += 1
        ended = self.cell == 0
        observation = np.array([self.cell], np.float32)
        return observation, float(ended), ended, self.steps >= 100, {}


env = LeftRight()
check_env(env, warn=True)
model = A2C("MlpPolicy", env, verbose=0).learn(500)
obs, _ = env.reset()
action, _ = model.predict(obs, deterministic=True)
env.step(action)
print("trained on the object")
