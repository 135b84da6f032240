"""A2C on CartPole with one process for each environment."""

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
from phases import phase
from torch.distributions import Categorical

N_ENVS, N_STEPS = 4, 5
GAMMA, VALUE_COEF, ENTROPY_COEF = 0.99, 0.5, 0.01


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.policy = nn.Linear(64, 2)
        self.value = nn.Linear(64, 1)

    def forward(self, x):
        x = self.body(x)
        return Categorical(logits=self.policy(x)), self.value(x).squeeze(-1)


def make_env():
    return gym.make("CartPole-v1")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    envs = gym.vector.AsyncVectorEnv([make_env for _ in range(N_ENVS)])
    model = ActorCritic()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.99, eps=1e-5)
    obs, _ = envs.reset(seed=args.seed)
    running, finished, updates = np.zeros(N_ENVS), [], 0
    start = time.time()
    while time.time() - start < args.seconds:
        log_probs, values, entropies, rewards, masks = [], [], [], [], []
        for _ in range(N_STEPS):
            with phase("acting"):
                dist, value = model(torch.as_tensor(obs, dtype=torch.float32))
                action = dist.sample()
                log_probs.append(dist.log_prob(action))
                values.append(value)
                entropies.append(dist.entropy())
            with phase("waiting"):
                obs, reward, terminated, truncated, _ = envs.step(action.numpy())
            done = terminated | truncated
            rewards.append(torch.as_tensor(reward, dtype=torch.float32))
            masks.append(torch.as_tensor(1 - done.astype(np.float32)))
            running += reward
            finished.extend(running[done])
            running[done] = 0

        with phase("learning"):
            with torch.no_grad():
                _, R = model(torch.as_tensor(obs, dtype=torch.float32))
            returns = []
            for r, mask in zip(reversed(rewards), reversed(masks)):
                R = r + GAMMA * R * mask
                returns.insert(0, R)
            advantages = torch.stack(returns) - torch.stack(values)
            policy_loss = -(torch.stack(log_probs) * advantages.detach()).mean()
            value_loss = advantages.pow(2).mean()
            entropy = torch.stack(entropies).mean()
            loss = policy_loss + VALUE_COEF * value_loss - ENTROPY_COEF * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        updates += 1
        if updates % 200 == 0 and finished:
            print(f"update {updates}: mean return {np.mean(finished[-50:]):.1f}")
    envs.close()


if __name__ == "__main__":
    main()
