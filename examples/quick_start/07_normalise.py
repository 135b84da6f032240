"""Normalised observations and rewards, with statistics that a loaded agent keeps."""

from flatout import PPO

agent = PPO("Pendulum-v1", n_steps=256, normalize_observation=True, normalize_reward=True)
agent.learn(1_024).save("agent")
print(PPO.load("agent").evaluate(5).return_mean)
