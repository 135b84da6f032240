"""Several environments with `make_vec_env` and `SubprocVecEnv`."""

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv

if __name__ == "__main__":
    envs = make_vec_env("CartPole-v1", n_envs=2, seed=0, vec_env_cls=SubprocVecEnv)
    model = PPO("MlpPolicy", envs, n_steps=128)
    model.learn(total_timesteps=512)
    assert envs.num_envs == 2
    assert model.n_envs == 2
    print("steps", model.num_timesteps)
    envs.close()
