"""The step loop of a `VecEnv`: `get_env`, `reset`, `step`, `predict`."""

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

model = PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=2), n_steps=128)
model.learn(512)
envs = model.get_env()
obs = envs.reset()
ended = 0
for _ in range(300):
    actions, _ = model.predict(obs)
    obs, rewards, dones, infos = envs.step(actions)
    ended += int(dones.sum())
assert obs.shape == (2, 4)
assert rewards.shape == (2,)
assert ended > 0
assert len(infos) == 2
print("episodes", ended)
