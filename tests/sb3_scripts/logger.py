"""`configure`, `set_logger`, and `logger.record` of a callback."""

import csv
import tempfile
from pathlib import Path

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure


class Record(BaseCallback):
    def _on_step(self):
        self.logger.record("mine/steps", self.num_timesteps)
        return True


with tempfile.TemporaryDirectory() as folder:
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=256)
    model.set_logger(configure(folder, ["csv"]))
    model.learn(1024, callback=Record())
    with (Path(folder) / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
assert rows
assert any(row.get("mine/steps") for row in rows)
assert "rollout/ep_rew_mean" in rows[0]
print(len(rows), "rows")
