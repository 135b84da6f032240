"""Curves in TensorBoard: `tensorboard --logdir runs`."""

from flatout import PPO

PPO("CartPole-v1", n_steps=256).learn(1_024, run_dir="runs/board")
