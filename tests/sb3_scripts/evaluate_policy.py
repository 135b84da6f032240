"""`evaluate_policy`: mean and standard deviation."""

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

model = PPO("MlpPolicy", "CartPole-v1", n_steps=256)
model.learn(512)
env = gym.make("CartPole-v1")
mean, std = evaluate_policy(model, env, n_eval_episodes=5, deterministic=True, warn=False)
assert 5 < mean <= 500
assert std >= 0
own, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=3, warn=False)
assert own > 5
print(f"{mean:.1f} +- {std:.1f}")
