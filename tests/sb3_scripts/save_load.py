"""Basic usage: training, saving, loading."""

import tempfile
from pathlib import Path

import numpy as np
from stable_baselines3 import DQN

model = DQN("MlpPolicy", "CartPole-v1", learning_starts=100, seed=1)
model.learn(total_timesteps=600)
observations = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
before, _ = model.predict(observations, deterministic=True)

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "dqn_cartpole"
    model.save(path)
    del model
    loaded = DQN.load(path)
after, _ = loaded.predict(observations, deterministic=True)
assert np.array_equal(before, after)
print("same actions", before.tolist())
