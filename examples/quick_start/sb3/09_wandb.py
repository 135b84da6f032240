"""Weights & Biases offline: `wandb sync` uploads the run later."""

import wandb
from stable_baselines3 import PPO

with wandb.init(project="quick-start", mode="offline", sync_tensorboard=True):
    PPO("MlpPolicy", "CartPole-v1", n_steps=256, tensorboard_log="runs").learn(1_024)
