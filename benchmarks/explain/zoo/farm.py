"""Q-learning on a farm of four greenhouse simulators in processes, stepped together (NumPy)."""

import multiprocessing as mp
import time

import numpy as np
from pace import Pace, end_with_parent

LATENCY = (0.001, 0.001, 0.001, 0.025)
"""Seconds until each simulator answers: the last one asks a remote weather service."""


class Greenhouse:
    def __init__(self, seed, latency):
        self.rng, self.latency = np.random.default_rng(seed), latency
        self.heat = self.damp = 0.0

    def step(self, action):
        time.sleep(self.latency)
        outside = self.rng.normal(0, 0.2, 2)
        self.heat += 0.3 * (action // 3 - 1) + outside[0] - 0.1 * self.heat
        self.damp += 0.3 * (action % 3 - 1) + outside[1] - 0.1 * self.damp
        return (self.heat, self.damp), -(self.heat**2) - self.damp**2


def house_process(pipe, seed, latency):
    end_with_parent()
    house = Greenhouse(seed, latency)
    while True:
        action = pipe.recv()
        if action is None:
            return
        pipe.send(house.step(action))


class Farm:
    """All houses take their step before any takes the next."""

    def __init__(self):
        context = mp.get_context("spawn")
        self.pipes, self.houses = [], []
        for seed, latency in enumerate(LATENCY):
            ours, theirs = context.Pipe()
            house = context.Process(target=house_process, args=(theirs, seed, latency), daemon=True)
            house.start()
            self.pipes.append(ours)
            self.houses.append(house)

    def step(self, actions):
        for pipe, action in zip(self.pipes, actions, strict=True):
            pipe.send(int(action))
        return zip(*[pipe.recv() for pipe in self.pipes], strict=True)

    def close(self):
        for pipe in self.pipes:
            pipe.send(None)
        for house in self.houses:
            house.join()


def features(states):
    """Radial features of heat and damp: [N, 121]."""
    grid = np.stack(np.meshgrid(*[np.linspace(-3, 3, 11)] * 2), -1).reshape(-1, 2)
    gap = np.asarray(states)[:, None] - grid
    return np.exp(-np.square(gap).sum(-1))


def main():
    pace = Pace.from_args()
    rng, farm = np.random.default_rng(0), Farm()
    weights = np.zeros((121, 9))
    states, _ = farm.step([4] * 4)
    phi = features(states)
    while pace.on():
        q = phi @ weights
        actions = np.where(rng.random(4) < 0.1, rng.integers(0, 9, 4), q.argmax(1))
        states, rewards = farm.step(actions)
        phi2 = features(states)
        target = np.array(rewards) + 0.95 * (phi2 @ weights).max(1)
        for i, a in enumerate(actions):
            weights[:, a] += 0.05 * (target[i] - q[i, a]) * phi[i]
        phi = phi2
        pace.add(4)
    farm.close()
    pace.report()


if __name__ == "__main__":
    main()
