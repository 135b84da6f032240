"""A small framework of ensembles of critics (after REDQ), with one task: park the ferry."""

import random
from collections import deque
from copy import deepcopy
from itertools import pairwise

import numpy as np
import torch
from pace import Pace
from torch import nn


class FerryPark:
    def reset(self):
        self.x, self.v, self.t = random.uniform(-4, 4), 0.0, 0
        return self._obs()

    def _obs(self):
        tide = 0.05 * self.t
        return np.float32([self.x, self.v, np.sin(tide), np.cos(tide), self.t / 200])

    def step(self, action):
        self.v = 0.97 * self.v + 0.05 * float(action[0]) + 0.01 * np.sin(0.05 * self.t)
        self.x += self.v
        self.t += 1
        return self._obs(), -abs(self.x) - 0.1 * abs(self.v), self.t >= 200


class ClippedAdam:
    """Adam with a clip by parameter, and statistics of each for the log."""

    def __init__(self, params, lr=3e-4, clip=1.0, decay=1e-4):
        self.params, self.lr, self.clip, self.decay = list(params), lr, clip, decay
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]
        self.t, self.stats = 0, {}

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.t += 1
        b1, b2 = 0.9, 0.999
        for i, p in enumerate(self.params):
            g = p.grad
            norm = g.norm().item()
            if norm > self.clip:
                g = g * (self.clip / norm)
            self.m[i] = b1 * self.m[i] + (1 - b1) * g
            self.v[i] = b2 * self.v[i] + (1 - b2) * g * g
            m_hat = self.m[i] / (1 - b1**self.t)
            v_hat = self.v[i] / (1 - b2**self.t)
            delta = self.lr * m_hat / (v_hat.sqrt() + 1e-8)
            p -= delta + self.lr * self.decay * p
            moved = (delta.abs().mean() / (p.abs().mean() + 1e-8)).item()
            dead = (g.abs() < 1e-8).float().mean().item()
            self.stats[i] = {"grad": norm, "size": p.norm().item(), "step": moved, "dead": dead}


def mlp(*sizes):
    layers = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class Redq:
    def __init__(self, obs_dim, act_dim, critics, optimiser):
        self.actor = mlp(obs_dim, 32, 32, act_dim)
        self.critics = nn.ModuleList(mlp(obs_dim + act_dim, 32, 32, 1) for _ in range(critics))
        self.targets = deepcopy(self.critics)
        self.actor_opt = optimiser(self.actor.parameters())
        self.critic_opt = optimiser(self.critics.parameters())

    @torch.no_grad()
    def act(self, obs):
        action = torch.tanh(self.actor(torch.from_numpy(obs)))
        return (action + 0.1 * torch.randn_like(action)).clamp(-1, 1).numpy()

    def learn(self, s, a, r, s2, with_actor):
        with torch.no_grad():
            x2 = torch.cat([s2, torch.tanh(self.actor(s2))], -1)
            pair = torch.randperm(len(self.targets))[:2].tolist()
            y = r + 0.99 * torch.min(*(self.targets[i](x2) for i in pair))
        x = torch.cat([s, a], -1)
        self.descend(self.critic_opt, sum(((q(x) - y) ** 2).mean() for q in self.critics))
        pairs = [list(net.parameters()) for net in (self.targets, self.critics)]
        with torch.no_grad():
            torch._foreach_lerp_(*pairs, 0.005)
        if with_actor:
            x = torch.cat([s, torch.tanh(self.actor(s))], -1)
            self.descend(self.actor_opt, -sum(q(x).mean() for q in self.critics))

    def descend(self, optimiser, loss):
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


REGISTRY = {cls.__name__: cls for cls in (FerryPark, ClippedAdam, Redq)}


class Runner:
    def __init__(self, env, agent, optimiser, critics):
        self.env = REGISTRY[env]()
        self.agent = REGISTRY[agent](5, 1, critics, REGISTRY[optimiser])
        self.store = deque(maxlen=20_000)

    def interact(self):
        action = self.agent.act(self.obs)
        obs, reward, done = self.env.step(action)
        self.store.append((self.obs, action, np.float32([reward]), obs))
        self.obs = self.env.reset() if done else obs

    def run(self, pace, batch=32, updates_per_step=4, random_steps=500):
        self.obs = self.env.reset()
        for _ in range(random_steps):
            self.interact()
        while pace.on():
            self.interact()
            for k in range(updates_per_step):
                rows = zip(*random.sample(self.store, batch), strict=True)
                self.agent.learn(*(torch.from_numpy(np.stack(r)) for r in rows), k == 0)
                pace.add(1)
        pace.report()


def main():
    torch.set_num_threads(1)
    Runner("FerryPark", "Redq", "ClippedAdam", critics=8).run(Pace.from_args())


if __name__ == "__main__":
    main()
