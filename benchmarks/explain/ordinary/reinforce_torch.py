"""REINFORCE on CartPole."""

import argparse
import time

import gymnasium as gym
import torch
import torch.nn as nn
import torch.optim as optim
from phases import phase
from torch.distributions import Categorical

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

gamma = 0.99
env = gym.make("CartPole-v1")
torch.manual_seed(args.seed)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 128)
        self.fc2 = nn.Linear(128, 2)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        return torch.softmax(self.fc2(x), dim=-1)


policy = Policy()
optimizer = optim.Adam(policy.parameters(), lr=3e-3)


def select_action(state):
    state = torch.from_numpy(state).float().unsqueeze(0)
    dist = Categorical(policy(state))
    action = dist.sample()
    return action.item(), dist.log_prob(action)


def update(log_probs, rewards):
    returns = []
    R = 0
    for r in reversed(rewards):
        R = r + gamma * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-8)
    loss = -(torch.cat(log_probs) * returns).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


running_reward = 10
episode = 0
start = time.time()
while time.time() - start < args.seconds:
    log_probs, rewards = [], []
    with phase("env"):
        state, _ = env.reset(seed=args.seed if episode == 0 else None)
    done = False
    while not done:
        with phase("acting"):
            action, log_prob = select_action(state)
        with phase("env"):
            state, reward, terminated, truncated, _ = env.step(action)
        done = terminated or truncated
        log_probs.append(log_prob)
        rewards.append(reward)
    with phase("learning"):
        update(log_probs, rewards)
    running_reward = 0.05 * sum(rewards) + 0.95 * running_reward
    episode += 1
    if episode % 20 == 0:
        print(f"Episode {episode}\tLast: {sum(rewards):.0f}\tAverage: {running_reward:.1f}")
