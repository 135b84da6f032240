"""Curves in TensorBoard: `tensorboard --logdir runs`."""

from stable_baselines3 import PPO

model = PPO("MlpPolicy", "CartPole-v1", n_steps=256, tensorboard_log="runs")
model.learn(1_024, tb_log_name="board")
