"""DQN on CartPole with a deque as the replay memory."""

import argparse
import copy
import math
import random
import time
from collections import deque

import gymnasium as gym
import torch
import torch.nn as nn
import torch.optim as optim
from phases import phase

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

BATCH_SIZE = 128
GAMMA = 0.99
EPS_START, EPS_END, EPS_DECAY = 0.9, 0.05, 1000
TAU = 0.005
random.seed(args.seed)
torch.manual_seed(args.seed)
env = gym.make("CartPole-v1")


policy_net = nn.Sequential(
    nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)
)
target_net = copy.deepcopy(policy_net)
optimizer = optim.AdamW(policy_net.parameters(), lr=3e-4, amsgrad=True)
memory = deque(maxlen=10000)


def select_action(state, steps_done):
    eps = EPS_END + (EPS_START - EPS_END) * math.exp(-steps_done / EPS_DECAY)
    if random.random() < eps:
        return random.randrange(2)
    with torch.no_grad():
        return policy_net(state.unsqueeze(0)).argmax(dim=1).item()


def optimize_model():
    with phase("replay"):
        batch = random.sample(memory, BATCH_SIZE)
        states, actions, rewards, next_states, dones = zip(*batch)
        states, next_states = torch.stack(states), torch.stack(next_states)
        actions, rewards = torch.tensor(actions).unsqueeze(1), torch.tensor(rewards)
        dones = torch.tensor(dones, dtype=torch.float32)
    q = policy_net(states).gather(1, actions).squeeze(1)
    with torch.no_grad():
        target = rewards + GAMMA * target_net(next_states).max(1).values * (1 - dones)
    loss = nn.functional.smooth_l1_loss(q, target)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    for p, target_p in zip(policy_net.parameters(), target_net.parameters()):
        target_p.data.copy_(TAU * p.data + (1 - TAU) * target_p.data)


steps_done, episode_reward, returns = 0, 0, []
state = torch.from_numpy(env.reset(seed=args.seed)[0])
start = time.time()
while time.time() - start < args.seconds:
    with phase("acting"):
        action = select_action(state, steps_done)
    with phase("env"):
        observation, reward, terminated, truncated, _ = env.step(action)
        next_state = torch.from_numpy(observation)
    memory.append((state, action, reward, next_state, terminated))
    state, steps_done, episode_reward = next_state, steps_done + 1, episode_reward + reward
    if len(memory) >= BATCH_SIZE:
        with phase("learning"):
            optimize_model()
    if terminated or truncated:
        returns.append(episode_reward)
        if len(returns) % 10 == 0:
            print(f"Episode {len(returns)}, steps {steps_done}: {sum(returns[-10:]) / 10:.1f}")
        episode_reward = 0
        with phase("env"):
            state = torch.from_numpy(env.reset()[0])
