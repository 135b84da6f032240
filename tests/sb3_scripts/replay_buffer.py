"""Save and load an off-policy agent with its replay buffer."""

import tempfile
from pathlib import Path

import gymnasium as gym
from stable_baselines3 import SAC

model = SAC("MlpPolicy", "Pendulum-v1", learning_starts=100, batch_size=32, train_freq=8)
model.learn(300)
with tempfile.TemporaryDirectory() as folder:
    model.save(Path(folder) / "sac")
    model.save_replay_buffer(Path(folder) / "replay")
    loaded = SAC.load(Path(folder) / "sac", env=gym.make("Pendulum-v1"))
    loaded.load_replay_buffer(Path(folder) / "replay")
    assert loaded.replay_buffer.size() == 304
    loaded.learn(100, reset_num_timesteps=False)
print("continued")
