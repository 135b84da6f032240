"""Keep the agent with the best evaluation, and load it."""

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env

env = make_vec_env("CartPole-v1")
keep = EvalCallback(env, eval_freq=512, n_eval_episodes=5, best_model_save_path="runs/best")
model = PPO("MlpPolicy", "CartPole-v1", n_steps=256)
model.learn(1_024, callback=keep)
best = PPO.load("runs/best/best_model")
