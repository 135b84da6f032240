"""A row of tuned hyperparameters turned into an agent, as RL Zoo does."""

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

ROW = {
    "n_envs": 2, "n_timesteps": 1024, "policy": "MlpPolicy", "normalize": True, "n_steps": 128,
    "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01,
    "learning_rate": "lin_0.001", "clip_range": "lin_0.2",
}  # fmt: skip


def schedule(text):
    start = float(text.removeprefix("lin_"))
    return lambda remaining: remaining * start


row = dict(ROW)
envs = make_vec_env("MountainCar-v0", n_envs=row.pop("n_envs"))
if row.pop("normalize"):
    envs = VecNormalize(envs, gamma=row["gamma"])
steps = row.pop("n_timesteps")
for name in ("learning_rate", "clip_range"):
    row[name] = schedule(row[name])
model = PPO(row.pop("policy"), envs, **row)
model.learn(steps)
assert model.num_timesteps >= steps
print("steps", model.num_timesteps)
