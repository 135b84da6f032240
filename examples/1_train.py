"""Train in three lines, then act.

It prints its progress, and at last:

    one greedy episode: return 500
"""

import gymnasium as gym

from flatout import PPO


def main() -> None:
    agent = PPO("CartPole-v1", seed=1, preset="cartpole-ppo").learn(progress_bar=True)

    env = gym.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    total, done = 0.0, False
    while not done:
        action, _ = agent.predict(observation, deterministic=True)
        observation, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        done = terminated or truncated
    print(f"one greedy episode: return {total:.0f}")


if __name__ == "__main__":
    main()
