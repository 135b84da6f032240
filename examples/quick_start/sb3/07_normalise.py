"""Normalised observations and rewards, with statistics that a loaded agent keeps."""

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

env = VecNormalize(make_vec_env("Pendulum-v1"))
PPO("MlpPolicy", env, n_steps=256).learn(1_024).save("agent")
env.save("statistics.pkl")

env = VecNormalize.load("statistics.pkl", make_vec_env("Pendulum-v1"))
env.training = env.norm_reward = False
print(evaluate_policy(PPO.load("agent"), env, n_eval_episodes=5)[0])
