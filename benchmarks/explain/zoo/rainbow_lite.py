"""A small Rainbow (JAX): double Q-learning with prioritised replay written in plain Python."""

import math
import random
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from pace import Pace

CAPACITY, BATCH, ALPHA, BETA = 40_000, 32, 0.6, 0.4


class Prioritised:
    def __init__(self):
        self.data, self.priorities, self.at = [], [], 0

    def add(self, item, priority=1.0):
        if len(self.data) < CAPACITY:
            self.data.append(item)
            self.priorities.append(priority)
        else:
            self.data[self.at], self.priorities[self.at] = item, priority
            self.at = (self.at + 1) % CAPACITY

    def sample(self):
        scaled = [p**ALPHA for p in self.priorities]
        total = sum(scaled)
        probabilities = [p / total for p in scaled]
        idx = random.choices(range(len(self.data)), weights=probabilities, k=BATCH)
        weights = [(len(self.data) * probabilities[i]) ** -BETA for i in idx]
        return idx, [self.data[i] for i in idx], weights

    def update(self, idx, errors):
        for i, e in zip(idx, errors, strict=True):
            self.priorities[i] = abs(float(e)) + 1e-3


def glide(s, a):
    """A glider that looks for lift: position, height, speed."""
    x, h, v = s
    v = min(2.0, max(0.2, v + (a - 1) * 0.1))
    lift = 0.3 * math.sin(1.7 * x) + 0.1 * math.sin(5.1 * x)
    h2 = h + 0.1 * (lift - 0.15 * v * v - 0.02)
    return (x + 0.1 * v, h2, v), 0.1 * v, h2 <= 0


def net_init(key, sizes=(3, 128, 128, 3)):
    out = []
    for i, o in pairwise(sizes):
        key, k = jax.random.split(key)
        out.append({"w": jax.random.normal(k, (i, o)) * (2 / i) ** 0.5, "b": jnp.zeros(o)})
    return out


@jax.jit
def forward(net, x):
    for layer in net[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ net[-1]["w"] + net[-1]["b"]


@jax.jit
def train_step(net, target, s, a, r, s2, end, weights):
    best = forward(net, s2).argmax(-1)
    goal = r + 0.99 * (1 - end) * jnp.take_along_axis(forward(target, s2), best[:, None], 1)[:, 0]

    def loss(n):
        delta = jnp.take_along_axis(forward(n, s), a[:, None], 1)[:, 0] - goal
        return jnp.mean(weights * delta**2), delta

    grads, delta = jax.grad(loss, has_aux=True)(net)
    return jax.tree.map(lambda p, g: p - 1e-3 * g, net, grads), delta


def main():
    pace = Pace.from_args()
    random.seed(0)
    memory, net = Prioritised(), net_init(jax.random.key(0))
    target, s = net, (0.0, 2.0, 1.0)
    while len(memory.data) < CAPACITY:
        a = random.randrange(3)
        s2, r, end = glide(s, a)
        memory.add((s, a, r, s2, end))
        s = (random.random(), 2.0, 1.0) if end else s2
    n = 0
    while pace.on():
        for _ in range(2):
            greedy = random.random() > 0.05
            a = int(forward(net, np.array(s)).argmax()) if greedy else random.randrange(3)
            s2, r, end = glide(s, a)
            memory.add((s, a, r, s2, end), max(memory.priorities[-100:]))
            s = (random.random(), 2.0, 1.0) if end else s2
        idx, rows, weights = memory.sample()
        columns = [np.array(c, np.float32) for c in zip(*rows, strict=True)]
        bs, ba, br, bs2, bend = columns
        net, delta = train_step(
            net, target, bs, ba.astype(np.int32), br, bs2, bend, np.array(weights, np.float32)
        )
        memory.update(idx, np.asarray(delta))
        n += 1
        target = net if n % 200 == 0 else target
        pace.add()
    pace.report()


if __name__ == "__main__":
    main()
