"""`DummyVecEnv` of factories, given to an agent."""

import gymnasium as gym
from stable_baselines3 import A2C
from stable_baselines3.common.vec_env import DummyVecEnv


def make():
    return gym.make("CartPole-v1")


envs = DummyVecEnv([make, make, make])
model = A2C("MlpPolicy", envs, n_steps=8)
model.learn(480)
assert model.n_envs == 3
print("trained with", model.n_envs, "environments")
