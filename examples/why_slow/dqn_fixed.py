"""The same program, but NumPy makes one array of a batch's observations before PyTorch gets it."""

import random
import sys
import time
from collections import deque

import gymnasium as gym
import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)  # such a small network is not faster with more
SECONDS = float(sys.argv[1]) if sys.argv[1:] else 60.0

env = gym.make("CartPole-v1")
q_network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(q_network.parameters(), lr=1e-3)
memory = deque(maxlen=10_000)


def choose(observation, epsilon):
    if random.random() < epsilon:
        return env.action_space.sample()
    with torch.no_grad():
        return int(q_network(torch.as_tensor(observation)).argmax())


def sample_batch(size):
    batch = random.sample(memory, size)
    observations, actions, rewards, following, ended = zip(*batch, strict=True)
    return (
        torch.from_numpy(np.stack(observations)),
        torch.tensor(actions),
        torch.tensor(rewards, dtype=torch.float32),
        torch.from_numpy(np.stack(following)),
        torch.tensor(ended, dtype=torch.float32),
    )


def learn():
    observations, actions, rewards, following, ended = sample_batch(512)
    with torch.no_grad():
        target = rewards + 0.99 * (1 - ended) * q_network(following).max(1).values
    chosen = q_network(observations).gather(1, actions[:, None])[:, 0]
    loss = nn.functional.mse_loss(chosen, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    observation, _ = env.reset(seed=0)
    steps, end = 0, time.monotonic() + SECONDS
    while time.monotonic() < end:
        action = choose(observation, epsilon=0.1)
        after, reward, terminated, truncated, _ = env.step(action)
        memory.append((observation, action, reward, after, terminated))
        observation = env.reset()[0] if terminated or truncated else after
        steps += 1
        if len(memory) >= 1_000:
            learn()
    print(f"{steps} steps")


if __name__ == "__main__":
    main()
