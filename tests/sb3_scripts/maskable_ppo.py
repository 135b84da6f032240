"""`MaskablePPO` with `ActionMasker`."""

import gymnasium as gym
import numpy as np
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks
from sb3_contrib.common.wrappers import ActionMasker


class Climb(gym.Env):
    """Only the next number is allowed."""

    observation_space = gym.spaces.Box(0, 5, (1,), np.float32)
    action_space = gym.spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return np.array([self.at], np.float32), {}

    def step(self, action):
        assert action == self.at, "a forbidden action"
        self.at += 1
        return np.array([self.at % 5], np.float32), 1.0, self.at == 5, False, {}


def allowed(env):
    return np.arange(5) == env.unwrapped.at % 5


env = ActionMasker(Climb(), allowed)
model = MaskablePPO("MlpPolicy", env, n_steps=64)
model.learn(256)
obs, _ = env.reset()
action, _ = model.predict(obs, action_masks=get_action_masks(env), deterministic=True)
assert action == 0
print("obeyed masks")
