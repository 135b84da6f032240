"""A callback that stops training at the first episode of at least 60 steps."""

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback


class StopEarly(BaseCallback):
    def _on_step(self):
        return all(info["episode"]["l"] < 60 for info in self.locals["infos"] if "episode" in info)


model = PPO("MlpPolicy", "CartPole-v1", n_steps=256).learn(20_000, callback=StopEarly())
print(model.num_timesteps)
