"""Act with the agent in your own loop."""

import gymnasium as gym

from flatout import PPO

agent = PPO("CartPole-v1", n_steps=256).learn(1_024)
env = gym.make("CartPole-v1")
observation, _ = env.reset(seed=0)
total, over = 0.0, False
while not over:
    action, _ = agent.predict(observation, deterministic=True)
    observation, reward, terminated, truncated, _ = env.step(action)
    total, over = total + reward, terminated or truncated
print(total)
