"""Your own metric in the log: the length of the longest recent episode."""

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback


class Longest(BaseCallback):
    def _on_step(self):
        return True

    def _on_rollout_end(self):
        self.logger.record("my/longest", max(one["l"] for one in self.model.ep_info_buffer))


model = PPO("MlpPolicy", "CartPole-v1", n_steps=256, tensorboard_log="runs")
model.learn(1_024, callback=Longest(), tb_log_name="metric")
