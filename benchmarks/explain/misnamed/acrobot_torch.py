"""REINFORCE on Acrobot with a policy that samples actions and adds up its own episode."""

import argparse
import time

import gymnasium as gym
import torch
import torch.nn as nn
from phases import phase
from torch.distributions import Categorical

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3)
        )
        self.seen, self.rewards = [], []

    @torch.no_grad()
    def sample(self, observation):
        observation = torch.as_tensor(observation)
        action = Categorical(logits=self.net(observation)).sample()
        self.seen.append((observation, action))
        return action.item()

    def add(self, reward):
        self.rewards.append(reward)

    def loss(self):
        observations, actions = (torch.stack(part) for part in zip(*self.seen))
        returns = torch.tensor(self.rewards[::-1]).cumsum(0).flip(0)
        returns = (returns - returns.mean()) / (returns.std() + 1e-8)
        log_probs = Categorical(logits=self.net(observations)).log_prob(actions)
        self.seen, self.rewards = [], []
        return -(log_probs * returns).sum()


torch.manual_seed(args.seed)
env = gym.make("Acrobot-v1", max_episode_steps=200)
policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
episode, start = 0, time.time()
while time.time() - start < args.seconds:
    observation, _ = env.reset(seed=args.seed + episode)
    done, length = False, 0
    while not done:
        with phase("acting"):
            action = policy.sample(observation)
        with phase("env"):
            observation, reward, terminated, truncated, _ = env.step(action)
        policy.add(reward)
        done, length = terminated or truncated, length + 1
    with phase("learning"):
        optimizer.zero_grad()
        policy.loss().backward()
        optimizer.step()
    episode += 1
    print(f"episode {episode}: {length} steps", flush=True)
