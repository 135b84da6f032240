"""`CheckpointCallback`, then loading one of its files."""

import tempfile
from pathlib import Path

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CheckpointCallback

with tempfile.TemporaryDirectory() as folder:
    every = CheckpointCallback(save_freq=512, save_path=folder, name_prefix="cart")
    PPO("MlpPolicy", "CartPole-v1", n_steps=256).learn(1536, callback=every)
    files = sorted(Path(folder).glob("cart_*_steps*"))
    assert len(files) == 3, files
    model = PPO.load(files[0])
    action, _ = model.predict([0.0, 0.1, 0.0, -0.1])
    assert action in (0, 1)
    print([path.name for path in files])
