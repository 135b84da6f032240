"""The learning curve as a picture."""

from flatout import PPO

PPO("CartPole-v1", n_steps=256).learn(1_024).plot("curve.svg")
