"""Dict observations with `MultiInputPolicy`."""

import gymnasium as gym
import numpy as np
from stable_baselines3 import PPO


class Reach(gym.Env):
    """Move a point on a line to its goal."""

    observation_space = gym.spaces.Dict(
        {
            "position": gym.spaces.Box(-5, 5, (1,), np.float32),
            "goal": gym.spaces.Box(-5, 5, (1,), np.float32),
        }
    )
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def _observe(self):
        return {"position": np.array([self.x], np.float32), "goal": np.array([2], np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.steps = 0.0, 0
        return self._observe(), {}

    def step(self, action):
        self.x = float(np.clip(self.x + float(action[0]), -5, 5))
        self.steps += 1
        return self._observe(), -abs(self.x - 2), False, self.steps == 20, {}


model = PPO("MultiInputPolicy", Reach(), n_steps=128)
model.learn(512)
obs, _ = Reach().reset()
action, _ = model.predict(obs, deterministic=True)
assert action.shape == (1,)
print("action", action.shape)
