"""`load(env=...)`, then `learn(reset_num_timesteps=False)`."""

import tempfile
from pathlib import Path

import gymnasium as gym
from stable_baselines3 import PPO

model = PPO("MlpPolicy", "CartPole-v1", n_steps=256)
model.learn(512)
with tempfile.TemporaryDirectory() as folder:
    model.save(Path(folder) / "ppo")
    model = PPO.load(Path(folder) / "ppo", env=gym.make("CartPole-v1"))
model.learn(512, reset_num_timesteps=False)
assert model.num_timesteps == 1024
model.learn(256)
assert model.num_timesteps == 256
print("continued")
