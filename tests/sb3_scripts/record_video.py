"""Record a video of a trained agent with `VecVideoRecorder`."""

import tempfile
from pathlib import Path

import gymnasium as gym
from stable_baselines3 import A2C
from stable_baselines3.common.vec_env import DummyVecEnv, VecVideoRecorder

model = A2C("MlpPolicy", "CartPole-v1").learn(200)
with tempfile.TemporaryDirectory() as folder:
    envs = DummyVecEnv([lambda: gym.make("CartPole-v1", render_mode="rgb_array")])
    envs = VecVideoRecorder(
        envs, folder, record_video_trigger=lambda step: step == 0, video_length=50
    )
    obs = envs.reset()
    for _ in range(51):
        action, _ = model.predict(obs)
        obs, _, _, _ = envs.step(action)
    envs.close()
    assert list(Path(folder).glob("*.mp4"))
print("recorded")
