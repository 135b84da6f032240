"""PPO for a point that should reach the origin; the update evaluates the old actions again."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
from phases import phase
from torch.distributions import Normal

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
rng = np.random.default_rng(args.seed)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1))

    def act(self, state):
        distribution = Normal(self.actor(state), 0.3)
        action = distribution.sample()
        return action, distribution.log_prob(action).sum(dim=1)

    def evaluate(self, state, action):
        distribution = Normal(self.actor(state), 0.3)
        log_prob = distribution.log_prob(action).sum(dim=1)
        return log_prob, self.critic(state).squeeze(1), distribution.entropy().mean()


torch.manual_seed(args.seed)
policy = ActorCritic()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
points, iteration, start = rng.normal(size=(16, 2)), 0, time.time()
while time.time() - start < args.seconds:
    states, actions, log_probs, rewards = [], [], [], []
    for _ in range(32):
        with phase("acting"), torch.no_grad():
            state = torch.as_tensor(points, dtype=torch.float32)
            action, log_prob = policy.act(state)
        with phase("env"):
            points = np.clip(points + 0.1 * action.numpy(), -3, 3)
            rewards.append(torch.as_tensor(-np.abs(points).sum(axis=1), dtype=torch.float32))
        states, actions = [*states, state], [*actions, action]
        log_probs.append(log_prob)
    with phase("learning"):
        state, action, old = torch.cat(states), torch.cat(actions), torch.cat(log_probs)
        returns = torch.cat(rewards)  # a greedy point: the next distance is all that counts
        for _ in range(40):
            log_prob, value, entropy = policy.evaluate(state, action)
            advantage, ratio = returns - value.detach(), (log_prob - old).exp()
            clipped = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = 0.5 * (value - returns).square().mean() - clipped - 0.01 * entropy
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    iteration += 1
    print(f"iteration {iteration}: return {returns.mean():.4f}", flush=True)
