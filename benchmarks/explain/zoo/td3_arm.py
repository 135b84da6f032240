"""TD3-like control of a chain of joints (PyTorch); experience is kept as a list of tuples."""

import random

import numpy as np
import torch
from pace import Pace
from torch import nn

JOINTS, BATCH, KEEP = 24, 1024, 30_000
OBS = 4 * JOINTS


class Chain:
    """Joints that swing; every observation is a plain list of floats."""

    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.reset()

    def reset(self):
        self.q, self.v, self.t = self.rng.normal(0, 0.5, JOINTS), np.zeros(JOINTS), 0
        return self.obs()

    def obs(self):
        return np.concatenate([np.sin(self.q), np.cos(self.q), self.v, self.q]).tolist()

    def step(self, torque):
        self.v = 0.98 * self.v + 0.05 * (torque - np.sin(self.q))
        self.q = self.q + 0.05 * self.v
        self.t += 1
        return self.obs(), float(-np.square(self.q).mean()), self.t >= 200


class Experience:
    def __init__(self):
        self.items = []

    def push(self, s, a, r, s2):
        self.items.append((s, a, r, s2))
        if len(self.items) > KEEP:
            self.items.pop(0)

    def draw(self, n):
        chosen = random.sample(self.items, n)
        s = np.array([c[0] for c in chosen], dtype=np.float32)
        a = np.array([c[1] for c in chosen], dtype=np.float32)
        r = np.array([c[2] for c in chosen], dtype=np.float32)
        s2 = np.array([c[3] for c in chosen], dtype=np.float32)
        return [torch.from_numpy(x) for x in (s, a, r, s2)]


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs))


def main():
    pace = Pace.from_args()
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    chain, memory = Chain(), Experience()
    actor, critic, slow = mlp(OBS, JOINTS), mlp(OBS + JOINTS, 1), mlp(OBS + JOINTS, 1)
    slow.load_state_dict(critic.state_dict())
    actor_opt = torch.optim.Adam(actor.parameters(), 1e-3)
    critic_opt = torch.optim.Adam(critic.parameters(), 1e-3)
    state = chain.reset()
    for _ in range(10_000):
        action = np.random.uniform(-1, 1, JOINTS).tolist()
        following, reward, end = chain.step(np.array(action))
        memory.push(state, action, reward, following)
        state = chain.reset() if end else following
    while pace.on():
        with torch.no_grad():
            mean = torch.tanh(actor(torch.tensor(state))).numpy()
        action = (mean + np.random.normal(0, 0.1, JOINTS)).tolist()
        following, reward, end = chain.step(np.array(action))
        memory.push(state, action, reward, following)
        state = chain.reset() if end else following

        s, a, r, s2 = memory.draw(BATCH)
        with torch.no_grad():
            a2 = torch.tanh(actor(s2)) + 0.1 * torch.randn_like(a)
            y = r + 0.98 * slow(torch.cat([s2, a2], 1))[:, 0]
        critic_loss = (critic(torch.cat([s, a], 1))[:, 0] - y).pow(2).mean()
        critic_opt.zero_grad()
        critic_loss.backward()
        critic_opt.step()
        actor_loss = -critic(torch.cat([s, torch.tanh(actor(s))], 1)).mean()
        actor_opt.zero_grad()
        actor_loss.backward()
        actor_opt.step()
        with torch.no_grad():
            for p, q in zip(slow.parameters(), critic.parameters(), strict=True):
                p.lerp_(q, 0.005)
        pace.add()
    pace.report()


if __name__ == "__main__":
    main()
