"""PPO with minibatches on four CartPole environments."""

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
from phases import phase
from torch.distributions import Categorical

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

num_envs, num_steps, epochs, minibatch_size = 4, 128, 10, 128
gamma, lam, clip = 0.99, 0.95, 0.2
np.random.seed(args.seed)
torch.manual_seed(args.seed)
envs = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(num_envs)])

actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
parameters = list(actor.parameters()) + list(critic.parameters())
optimizer = torch.optim.Adam(parameters, lr=1e-3, eps=1e-5)

obs = torch.zeros(num_steps, num_envs, 4)
actions = torch.zeros(num_steps, num_envs)
logprobs, rewards, dones, values = (torch.zeros(num_steps, num_envs) for _ in range(4))

next_obs = torch.tensor(envs.reset(seed=args.seed)[0])
next_done = torch.zeros(num_envs)
episode_returns, finished = np.zeros(num_envs), [0.0]
update = 0
start = time.time()
while time.time() - start < args.seconds:
    for step in range(num_steps):
        obs[step], dones[step] = next_obs, next_done
        with phase("acting"), torch.no_grad():
            dist = Categorical(logits=actor(next_obs))
            action = dist.sample()
            actions[step], logprobs[step] = action, dist.log_prob(action)
            values[step] = critic(next_obs).flatten()
        with phase("env"):
            observation, reward, terminated, truncated, _ = envs.step(action.numpy())
        done = np.logical_or(terminated, truncated)
        rewards[step] = torch.tensor(reward)
        next_obs, next_done = torch.tensor(observation), torch.tensor(done).float()
        episode_returns += reward
        finished.extend(episode_returns[done])
        episode_returns[done] = 0

    with phase("learning"):
        with torch.no_grad():
            next_value = critic(next_obs).flatten()
            advantages, last = torch.zeros_like(rewards), 0
            for t in reversed(range(num_steps)):
                nonterminal = 1 - (next_done if t == num_steps - 1 else dones[t + 1])
                after = next_value if t == num_steps - 1 else values[t + 1]
                delta = rewards[t] + gamma * after * nonterminal - values[t]
                advantages[t] = last = delta + gamma * lam * nonterminal * last
            returns = (advantages + values).flatten()
        b_obs, b_actions, b_logprobs = obs.reshape(-1, 4), actions.flatten(), logprobs.flatten()
        b_advantages = advantages.flatten()
        for _ in range(epochs):
            for mb in torch.randperm(num_steps * num_envs).split(minibatch_size):
                dist = Categorical(logits=actor(b_obs[mb]))
                ratio = (dist.log_prob(b_actions[mb]) - b_logprobs[mb]).exp()
                adv = (b_advantages[mb] - b_advantages[mb].mean()) / (b_advantages[mb].std() + 1e-8)
                pg_loss = -torch.min(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv).mean()
                v_loss = ((critic(b_obs[mb]).flatten() - returns[mb]) ** 2).mean()
                loss = pg_loss + 0.5 * v_loss - 0.01 * dist.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
    update += 1
    if update % 5 == 0:
        print(f"update {update}: mean return {np.mean(finished[-20:]):.1f}, loss {loss.item():.3f}")
