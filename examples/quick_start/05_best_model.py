"""Keep the agent with the best evaluation, and load it."""

from flatout import PPO

agent = PPO("CartPole-v1", n_steps=256, eval_every=512, eval_episodes=5)
agent.learn(1_024, run_dir="runs/best")
best = PPO.load("runs/best")
