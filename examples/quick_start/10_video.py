"""A video of one greedy episode."""

from flatout import PPO

PPO("CartPole-v1", n_steps=256).learn(1_024).record("agent.gif")
