"""`VecNormalize` statistics: save, load, evaluate."""

import tempfile
from pathlib import Path

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

envs = VecNormalize(make_vec_env("Pendulum-v1", n_envs=1), norm_obs=True, norm_reward=True)
model = PPO("MlpPolicy", envs, n_steps=256)
model.learn(512)
with tempfile.TemporaryDirectory() as folder:
    statistics, file = Path(folder) / "normalize.pkl", Path(folder) / "model"
    model.save(file)
    envs.save(statistics)
    fresh = VecNormalize.load(statistics, make_vec_env("Pendulum-v1", n_envs=1))
    fresh.training = False
    fresh.norm_reward = False
    model = PPO.load(file, env=fresh)
    mean, _ = evaluate_policy(model, fresh, n_eval_episodes=2, warn=False)
    assert -2_000 < mean < 0
    print("mean", mean)
