"""Double DQN agent which learns to dock a small spacecraft (old gym interface)."""

import random
from copy import deepcopy

import numpy as np
import torch
import torch.nn.functional as F
from pace import Pace

CAPACITY, BATCH, GAMMA = 200000, 64, 0.99
THRUST = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]


class DockingEnv:
    def reset(self):
        self.s, self.t = [random.uniform(-5, 5), random.uniform(-5, 5), 0.0, 0.0], 0
        return np.array(self.s, dtype=np.float32)

    def step(self, a):
        x, y, vx, vy = self.s
        vx += 0.1 * THRUST[a][0] + 0.001 * y
        vy += 0.1 * THRUST[a][1] - 0.001 * x
        x, y = x + 0.2 * vx, y + 0.2 * vy
        self.s = [x, y, vx, vy]
        self.t += 1
        dist = abs(x) + abs(y)
        docked = dist < 0.3 and abs(vx) + abs(vy) < 0.3
        reward = 10.0 if docked else -0.02 * dist - 0.01 * (a > 0)
        done = docked or dist > 20 or self.t >= 400
        return np.array(self.s, dtype=np.float32), reward, done, {"docked": docked}


class PrioritizedMemory:
    """Schaul et al. 2015, proportional variant"""

    def __init__(self, capacity, alpha=0.6):
        self.capacity, self.alpha, self.pos = capacity, alpha, 0
        self.transitions = []
        self.priorities = []

    def push(self, transition, priority):
        if len(self.transitions) < self.capacity:
            self.transitions.append(None)
            self.priorities.append(0.0)
        self.transitions[self.pos] = transition
        self.priorities[self.pos] = priority
        self.pos = (self.pos + 1) % self.capacity

    def sample(self, n, beta):
        p = np.array(self.priorities) ** self.alpha
        p /= p.sum()
        idx = np.random.choice(len(self.transitions), n, p=p)
        weights = (len(self.transitions) * p[idx]) ** (-beta)
        return idx, weights / weights.max(), [self.transitions[i] for i in idx]

    def update(self, idx, priorities):
        for i, priority in zip(idx, priorities, strict=True):
            self.priorities[i] = priority


class DQNAgent:
    def __init__(self, n_obs, n_actions):
        self.n_actions, self.eps = n_actions, 1.0
        nn, n = torch.nn, 128
        self.q = nn.Sequential(
            nn.Linear(n_obs, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, n_actions)
        )
        self.q_target = deepcopy(self.q)
        self.optim = torch.optim.Adam(self.q.parameters(), lr=3e-4)
        self.memory = PrioritizedMemory(CAPACITY)

    def choose_action(self, obs):
        if random.random() < self.eps:
            return random.randrange(self.n_actions)
        with torch.no_grad():
            return int(self.q(torch.from_numpy(obs)[None]).argmax())

    def train_step(self):
        idx, w, batch = self.memory.sample(BATCH, beta=0.4)
        s, a, r, s2, d = (torch.from_numpy(np.array(x)) for x in zip(*batch, strict=True))
        q = self.q(s).gather(1, a[:, None])[:, 0]
        with torch.no_grad():
            best = self.q(s2).argmax(1, keepdim=True)
            target = r.float() + GAMMA * (1 - d.float()) * self.q_target(s2).gather(1, best)[:, 0]
        loss = F.smooth_l1_loss(q, target, reduction="none")
        loss = (torch.from_numpy(w).float() * loss).mean()
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        self.memory.update(idx, ((q - target).abs().detach().numpy() + 1e-3).tolist())


def play(agent, env, obs):
    a = agent.choose_action(obs)
    obs2, r, done, _info = env.step(a)
    agent.memory.push((obs, a, r, obs2, done), 1.0)
    return env.reset() if done else obs2


def main():
    torch.set_num_threads(1)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    env, agent = DockingEnv(), DQNAgent(4, len(THRUST))
    obs = env.reset()
    for _ in range(CAPACITY):  # random play before learning
        obs = play(agent, env, obs)
    agent.eps = 0.1
    pace = Pace.from_args()
    while pace.on():
        obs = play(agent, env, obs)
        agent.train_step()
        pace.add(1)
        if pace.work % 500 == 0:
            agent.q_target.load_state_dict(agent.q.state_dict())
    pace.report()


if __name__ == "__main__":
    main()
