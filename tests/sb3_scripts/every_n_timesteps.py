"""`EveryNTimesteps`."""

import tempfile
from pathlib import Path

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CheckpointCallback, EveryNTimesteps

with tempfile.TemporaryDirectory() as folder:
    save = CheckpointCallback(save_freq=1, save_path=folder)
    every = EveryNTimesteps(n_steps=512, callback=save)
    PPO("MlpPolicy", "CartPole-v1", n_steps=256).learn(1024, callback=every)
    files = list(Path(folder).glob("rl_model_*_steps*"))
    assert len(files) == 2, files
    print(len(files), "files")
