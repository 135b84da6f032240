"""Evaluate every 512 steps during training, and save the results."""

from flatout import PPO

agent = PPO("CartPole-v1", n_steps=256, eval_every=512, eval_episodes=5)
agent.learn(1_024, run_dir="runs/evaluation")
