"""Weights & Biases offline: `wandb sync` uploads the run later."""

import os

from flatout import PPO

os.environ["WANDB_MODE"] = "offline"
PPO("CartPole-v1", n_steps=256, wandb="quick-start").learn(1_024)
