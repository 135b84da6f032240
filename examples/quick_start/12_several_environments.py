"""Four environments at once, each in its own process."""

from flatout import PPO

if __name__ == "__main__":
    PPO("CartPole-v1", n_steps=64, placement="sampler=processes workers=4x1").learn(1_024)
