"""Save, load, and continue with a lower learning rate."""

import gymnasium as gym
from stable_baselines3 import PPO

PPO("MlpPolicy", "CartPole-v1", n_steps=256, learning_rate=1e-3).learn(1_024).save("agent")
model = PPO.load("agent", env=gym.make("CartPole-v1"), learning_rate=1e-4).learn(1_024)
