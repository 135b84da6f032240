"""`VecNormalize`: normalised observations and rewards."""

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

envs = make_vec_env("Pendulum-v1", n_envs=2)
envs = VecNormalize(envs, norm_obs=True, norm_reward=True, clip_obs=10.0)
model = PPO("MlpPolicy", envs, n_steps=128)
model.learn(1024)
print("steps", model.num_timesteps)
