"""Double DQN on Acrobot with prioritised experience replay: a sum tree in Python."""

import argparse
import copy
import random
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
from phases import phase


class SumTree:
    def __init__(self, capacity):
        self.capacity = capacity
        self.tree = np.zeros(2 * capacity - 1)
        self.data = np.zeros(capacity, dtype=object)
        self.write, self.size = 0, 0

    def _propagate(self, idx, change):
        parent = (idx - 1) // 2
        self.tree[parent] += change
        if parent != 0:
            self._propagate(parent, change)

    def _retrieve(self, idx, s):
        left = 2 * idx + 1
        if left >= len(self.tree):
            return idx
        if s <= self.tree[left]:
            return self._retrieve(left, s)
        return self._retrieve(left + 1, s - self.tree[left])

    def total(self):
        return self.tree[0]

    def add(self, p, data):
        self.data[self.write] = data
        self.update(self.write + self.capacity - 1, p)
        self.write = (self.write + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def update(self, idx, p):
        change = p - self.tree[idx]
        self.tree[idx] = p
        self._propagate(idx, change)

    def get(self, s):
        idx = self._retrieve(0, s)
        return idx, self.tree[idx], self.data[idx - self.capacity + 1]


class PrioritizedReplay:
    e, a, beta_increment = 0.01, 0.6, 1e-4

    def __init__(self, capacity):
        self.tree, self.beta, self.max_priority = SumTree(capacity), 0.4, 1.0

    def push(self, *transition):
        self.tree.add(self.max_priority, transition)

    def sample(self, n):
        idxs, priorities, batch = [], [], []
        segment = self.tree.total() / n
        self.beta = min(1.0, self.beta + self.beta_increment)
        for i in range(n):
            idx, p, data = self.tree.get(random.uniform(segment * i, segment * (i + 1)))
            if not isinstance(data, tuple):  # an empty leaf, by rounding
                idx, p, data = self.tree.get(0.0)
            idxs.append(idx)
            priorities.append(p)
            batch.append(data)
        probabilities = np.array(priorities) / self.tree.total()
        weights = np.power(self.tree.size * probabilities, -self.beta)
        arrays = [torch.as_tensor(np.array(x), dtype=torch.float32) for x in zip(*batch)]
        return arrays, idxs, torch.as_tensor(weights / weights.max(), dtype=torch.float32)

    def update(self, idxs, errors):
        for idx, error in zip(idxs, errors):
            p = (abs(error) + self.e) ** self.a
            self.max_priority = max(self.max_priority, p)
            self.tree.update(idx, p)


parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

random.seed(args.seed)
torch.manual_seed(args.seed)
env = gym.make("Acrobot-v1")
q = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
q_target = copy.deepcopy(q)
optimizer = torch.optim.Adam(q.parameters(), lr=5e-4)
memory = PrioritizedReplay(2**16)
epsilon, score, scores, step = 1.0, 0.0, [], 0
state, _ = env.reset(seed=args.seed)
start = time.time()
while time.time() - start < args.seconds:
    with phase("acting"):
        if random.random() < epsilon:
            action = random.randrange(3)
        else:
            with torch.no_grad():
                action = q(torch.from_numpy(state)).argmax().item()
    with phase("env"):
        next_state, reward, terminated, truncated, _ = env.step(action)
    with phase("replay"):
        memory.push(state, action, reward, next_state, terminated)
    state, score, step = next_state, score + reward, step + 1
    epsilon = max(0.05, epsilon * 0.9995)
    if terminated or truncated:
        scores.append(score)
        score = 0.0
        with phase("env"):
            state, _ = env.reset()
        print(f"episode {len(scores)}: mean score {np.mean(scores[-20:]):.1f}")

    if step >= 500 and step % 4 == 0:
        with phase("replay"):
            (s, a, r, s2, done), idxs, weights = memory.sample(256)
        with phase("learning"):
            with torch.no_grad():
                best = q(s2).argmax(1, keepdim=True)
                target = r + 0.99 * (1 - done) * q_target(s2).gather(1, best).squeeze(1)
            error = target - q(s).gather(1, a.long().unsqueeze(1)).squeeze(1)
            loss = (weights * error.pow(2)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with phase("replay"):
            memory.update(idxs, error.detach().tolist())
    if step % 1000 == 0:
        q_target.load_state_dict(q.state_dict())
