"""`evaluate_policy` per episode, with `Monitor`, a callback and a reward threshold."""

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

env = Monitor(gym.make("CartPole-v1"))
model = PPO("MlpPolicy", env, n_steps=256)
model.learn(512)
returns, lengths = evaluate_policy(model, env, n_eval_episodes=4, return_episode_rewards=True)
assert len(returns) == 4
assert [int(one) for one in returns] == lengths
evaluate_policy(model, env, n_eval_episodes=2, reward_threshold=1.0)
drawn, _ = evaluate_policy(model, env, n_eval_episodes=2, deterministic=False)
assert drawn > 0
print(returns, lengths)
