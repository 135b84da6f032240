"""Evaluate every 512 steps during training, and save the results."""

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env

env = make_vec_env("CartPole-v1")
evaluation = EvalCallback(env, eval_freq=512, n_eval_episodes=5, log_path="runs/evaluation")
model = PPO("MlpPolicy", "CartPole-v1", n_steps=256)
model.learn(1_024, callback=evaluation)
