"""`StopTrainingOnNoModelImprovement`."""

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnNoModelImprovement
from stable_baselines3.common.monitor import Monitor

patience = StopTrainingOnNoModelImprovement(max_no_improvement_evals=1, min_evals=2, verbose=0)
evaluation = EvalCallback(
    Monitor(gym.make("Pendulum-v1")), eval_freq=256, n_eval_episodes=1, verbose=0,
    callback_after_eval=patience,
)  # fmt: skip
model = PPO("MlpPolicy", "Pendulum-v1", n_steps=256, learning_rate=1e-9, seed=0)
model.learn(30_000, callback=evaluation)
assert model.num_timesteps < 30_000
print("stopped after", model.num_timesteps)
