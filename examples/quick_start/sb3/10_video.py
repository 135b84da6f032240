"""A video of one greedy episode."""

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecVideoRecorder

model = PPO("MlpPolicy", "CartPole-v1", n_steps=256).learn(1_024)
env = make_vec_env("CartPole-v1", env_kwargs={"render_mode": "rgb_array"})
env = VecVideoRecorder(env, "videos", record_video_trigger=lambda step: step == 0, video_length=500)
obs, done = env.reset(), [False]
while not done[0]:
    action, _ = model.predict(obs, deterministic=True)
    obs, _, done, _ = env.step(action)
env.close()
