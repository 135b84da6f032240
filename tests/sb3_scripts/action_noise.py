"""`NormalActionNoise`."""

import gymnasium as gym
import numpy as np
from stable_baselines3 import DDPG, TD3
from stable_baselines3.common.noise import NormalActionNoise

env = gym.make("Pendulum-v1")
count = env.action_space.shape[-1]
noise = NormalActionNoise(mean=np.zeros(count), sigma=0.1 * np.ones(count))
for kind in (TD3, DDPG):
    model = kind(
        "MlpPolicy", env, action_noise=noise, learning_starts=100, train_freq=8, batch_size=32
    )
    model.learn(300)
print("trained with noise")
