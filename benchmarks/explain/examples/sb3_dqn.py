"""DQN of Stable-Baselines3 on CartPole, as its documentation has it."""

from methods import time_method
from stable_baselines3 import DQN

model = DQN("MlpPolicy", "CartPole-v1", device="cpu", exploration_fraction=1e-5)
time_method(model.get_env(), "step", "env")
time_method(model, "predict", "acting")
time_method(model.replay_buffer, "add", "replay")
time_method(model.replay_buffer, "sample", "replay")
time_method(model, "train", "learning")
model.learn(total_timesteps=100_000_000)
