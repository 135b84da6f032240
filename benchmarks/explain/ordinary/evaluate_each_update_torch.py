"""Actor-critic on CartPole that evaluates the greedy policy after each update."""

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from phases import phase
from torch.distributions import Categorical

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

num_steps, eval_episodes, gamma = 256, 5, 0.99
torch.manual_seed(args.seed)
env = gym.make("CartPole-v1")
eval_env = gym.make("CartPole-v1")
actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(list(actor.parameters()) + list(critic.parameters()), lr=3e-3)


def evaluate():
    scores = []
    for _ in range(eval_episodes):
        obs, _ = eval_env.reset()
        score, done = 0.0, False
        while not done:
            with torch.no_grad():
                action = actor(torch.as_tensor(obs)).argmax().item()
            obs, reward, terminated, truncated, _ = eval_env.step(action)
            score += reward
            done = terminated or truncated
        scores.append(score)
    return np.mean(scores)


obs, _ = env.reset(seed=args.seed)
update = 0
start = time.time()
while time.time() - start < args.seconds:
    states, actions, rewards, dones = [], [], [], []
    for _ in range(num_steps):
        with phase("acting"), torch.no_grad():
            action = Categorical(logits=actor(torch.as_tensor(obs))).sample().item()
        states.append(obs)
        actions.append(action)
        with phase("env"):
            obs, reward, terminated, truncated, _ = env.step(action)
            done = terminated or truncated
            if done:
                obs, _ = env.reset()
        rewards.append(reward)
        dones.append(done)

    with phase("learning"):
        batch = torch.as_tensor(np.array(states))
        with torch.no_grad():
            R = critic(torch.as_tensor(obs)).item()
        returns = []
        for r, d in zip(reversed(rewards), reversed(dones)):
            R = r + gamma * R * (1 - d)
            returns.insert(0, R)
        returns = torch.tensor(returns, dtype=torch.float32)
        values = critic(batch).squeeze(1)
        advantages = returns - values.detach()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        dist = Categorical(logits=actor(batch))
        actor_loss = -(dist.log_prob(torch.tensor(actions)) * advantages).mean()
        loss = actor_loss + 0.5 * F.smooth_l1_loss(values, returns) - 0.01 * dist.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with phase("evaluation"):
        score = evaluate()
    update += 1
    print(f"update {update}: evaluation {score:.1f}")
