"""`seed`: two runs with the same result."""

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.utils import set_random_seed

set_random_seed(7)
observations = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
found = []
for _ in range(2):
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=256, seed=7).learn(512)
    found.append(model.predict(observations, deterministic=True)[0])
assert np.array_equal(*found)
print("same actions")
