"""`StopTrainingOnRewardThreshold` within `EvalCallback`."""

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold

stop = StopTrainingOnRewardThreshold(reward_threshold=5, verbose=0)
evaluation = EvalCallback(
    gym.make("CartPole-v1"), callback_on_new_best=stop, eval_freq=512,
    n_eval_episodes=2, warn=False, verbose=0,
)  # fmt: skip
model = PPO("MlpPolicy", "CartPole-v1", n_steps=256)
model.learn(100_000, callback=evaluation)
assert model.num_timesteps < 2_000
print("stopped after", model.num_timesteps)
