"""One-step actor-critic on CartPole: the networks are updated after every step."""

import argparse
import time

import gymnasium as gym
import torch
import torch.nn as nn
import torch.nn.functional as F
from phases import phase
from torch.distributions import Categorical

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

gamma = 0.99
torch.manual_seed(args.seed)
env = gym.make("CartPole-v1")


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2))
        self.critic = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, x):
        return self.actor(x), self.critic(x).squeeze(-1)


model = ActorCritic()
optimizer = torch.optim.Adam(
    [
        {"params": model.actor.parameters(), "lr": 5e-4},
        {"params": model.critic.parameters(), "lr": 5e-3},
    ]
)

episode = 0
average = 0.0
start = time.time()
while time.time() - start < args.seconds:
    with phase("env"):
        state, _ = env.reset(seed=args.seed if episode == 0 else None)
    episode_reward = 0
    done = False
    while not done:
        with phase("acting"):
            state_tensor = torch.tensor(state, dtype=torch.float32)
            logits, value = model(state_tensor)
            dist = Categorical(logits=logits)
            action = dist.sample()
        with phase("env"):
            next_state, reward, terminated, truncated, _ = env.step(action.item())
        done = terminated or truncated
        episode_reward += reward

        with phase("learning"):
            with torch.no_grad():
                _, next_value = model(torch.tensor(next_state, dtype=torch.float32))
            target = reward + gamma * next_value * (1 - int(terminated))
            advantage = (target - value).detach()
            actor_loss = -dist.log_prob(action) * advantage
            critic_loss = F.mse_loss(value, target)
            loss = actor_loss + critic_loss - 0.05 * dist.entropy()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        state = next_state

    episode += 1
    average += 0.05 * (episode_reward - average)
    if episode % 20 == 0:
        print(f"Episode {episode}: reward {episode_reward:.0f}, average {average:.1f}")
