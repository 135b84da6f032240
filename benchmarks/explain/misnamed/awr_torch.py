"""Advantage-weighted regression on recorded episodes."""

import argparse
import time

import torch
import torch.nn as nn
from phases import phase

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
gamma, lam, length = 0.99, 0.95, 400
episodes = [
    (torch.randn(length, 8), torch.randint(4, (length,)), torch.rand(length)) for _ in range(50)
]
actor = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
critic = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)


def advantages_of(rewards, values):
    advantages = torch.zeros(len(rewards))
    last = torch.zeros(())
    for t in reversed(range(len(rewards))):
        following = values[t + 1] if t + 1 < len(rewards) else torch.zeros(())
        delta = rewards[t] + gamma * following - values[t]
        last = delta + gamma * lam * last
        advantages[t] = last
    return advantages


update, start = 0, time.time()
while time.time() - start < args.seconds:
    states, actions, rewards = episodes[update % len(episodes)]
    with phase("learning"):
        values = critic(states).squeeze(1)
    with phase("own"):
        advantages = advantages_of(rewards, values.detach())
    with phase("learning"):
        weights = torch.softmax(advantages, dim=0) * length
        log_probs = torch.log_softmax(actor(states), dim=1)[torch.arange(length), actions]
        value_loss = (values - (advantages + values).detach()).pow(2).mean()
        loss = value_loss - (log_probs * weights).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    update += 1
    if update % 100 == 0:
        print(f"update {update}: loss {loss.item():.4f}", flush=True)
