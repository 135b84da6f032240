"""`EvalCallback` and its best model."""

import tempfile
from pathlib import Path

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.monitor import Monitor

with tempfile.TemporaryDirectory() as folder:
    evaluation = EvalCallback(
        Monitor(gym.make("CartPole-v1")), eval_freq=512, n_eval_episodes=3,
        best_model_save_path=folder, log_path=folder, deterministic=True, render=False,
    )  # fmt: skip
    PPO("MlpPolicy", "CartPole-v1", n_steps=256).learn(1024, callback=evaluation)
    best = Path(folder) / "best_model"
    assert list(Path(folder).glob("best_model*"))
    model = PPO.load(best)
    assert model.predict([0.0, 0.1, 0.0, -0.1], deterministic=True)[0] in (0, 1)
    assert evaluation.best_mean_reward > 0
    assert evaluation.last_mean_reward > 0
    print("best", evaluation.best_mean_reward)
