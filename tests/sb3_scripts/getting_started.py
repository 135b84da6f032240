"""Train an agent, then act with `predict` in the environment."""

import gymnasium as gym
from stable_baselines3 import PPO

env = gym.make("CartPole-v1")
model = PPO("MlpPolicy", env, n_steps=256, verbose=0)
model.learn(total_timesteps=1024)

obs, _ = env.reset(seed=3)
total = 0.0
for _ in range(200):
    action, _state = model.predict(obs, deterministic=True)
    obs, reward, terminated, truncated, _ = env.step(action)
    total += float(reward)
    if terminated or truncated:
        obs, _ = env.reset()
assert total == 200.0
print("return", total)
