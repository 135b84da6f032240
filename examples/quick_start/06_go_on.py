"""Save, load, and continue with a lower learning rate."""

from flatout import PPO

PPO("CartPole-v1", n_steps=256, learning_rate=1e-3).learn(1_024).save("agent")
agent = PPO.load("agent", learning_rate=1e-4).learn(1_024)
