"""`VecFrameStack` of vector observations."""

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

envs = VecFrameStack(make_vec_env("CartPole-v1", n_envs=2), n_stack=3)
model = PPO("MlpPolicy", envs, n_steps=128)
model.learn(512)
assert model.observation_space.shape == (12,)
print("observations", model.observation_space.shape)
