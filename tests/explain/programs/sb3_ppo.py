"""PPO of Stable-Baselines3 on CartPole, with short rollouts; a callback ends it."""

import sys
import time

from methods import time_method
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

END = time.process_time() + float(sys.argv[1])  # as many cycles on a busy machine


class UntilEnd(BaseCallback):
    def _on_step(self):
        return time.process_time() < END


vec_env = make_vec_env("CartPole-v1", n_envs=4)
model = PPO("MlpPolicy", vec_env, n_steps=256, device="cpu")
time_method(vec_env, "step", "env")
time_method(model.policy, "forward", "acting")
time_method(model, "train", "learning")
model.learn(total_timesteps=100_000_000, callback=UntilEnd())
