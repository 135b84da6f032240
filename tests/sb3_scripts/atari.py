"""Atari with `make_atari_env` and `VecFrameStack`."""

import ale_py
import gymnasium as gym
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

if hasattr(gym, "register_envs"):
    gym.register_envs(ale_py)
envs = make_atari_env("BreakoutNoFrameskip-v4", n_envs=1, seed=0)
envs = VecFrameStack(envs, n_stack=4)
model = DQN("CnnPolicy", envs, buffer_size=1_000, learning_starts=100, train_freq=16, batch_size=8)
model.learn(total_timesteps=160)
assert model.num_timesteps >= 160
print("steps", model.num_timesteps)
