"""`CallbackList`, and a list of callbacks."""

import tempfile
from pathlib import Path

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CallbackList, CheckpointCallback, EvalCallback

with tempfile.TemporaryDirectory() as folder:
    save = CheckpointCallback(save_freq=512, save_path=folder)
    evaluate = EvalCallback(
        gym.make("CartPole-v1"), eval_freq=512, n_eval_episodes=1, warn=False, verbose=0
    )
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=256)
    model.learn(512, callback=CallbackList([save, evaluate]))
    assert len(list(Path(folder).iterdir())) == 1
    assert evaluate.last_mean_reward > 0
    model.learn(512, callback=[save, evaluate], reset_num_timesteps=False)
    assert len(list(Path(folder).iterdir())) == 2
print("both callbacks ran")
