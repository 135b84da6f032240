"""A fox learns to catch rabbits in a meadow: policy gradient in JAX, the meadow is our own."""

import math
import random

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pace import Pace

SIZE, RABBITS, NEAREST = 20.0, 40, 4
HEADINGS = [(math.cos(k * math.pi / 4), math.sin(k * math.pi / 4)) for k in range(8)]
MEADOWS, ROLLOUT, GAMMA = 8, 32, 0.98


class Meadow:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.fox = self.place()
        self.rabbits = [self.place() for _ in range(RABBITS)]
        self.speeds = [[0.0, 0.0] for _ in range(RABBITS)]
        self.clock = 0

    def place(self):
        return [self.rng.uniform(0, SIZE), self.rng.uniform(0, SIZE)]

    def look(self):
        fx, fy = self.fox
        gaps = sorted((math.hypot(x - fx, y - fy), x - fx, y - fy) for x, y in self.rabbits)
        return [v / SIZE for v in (fx, fy, *(v for _, *gap in gaps[:NEAREST] for v in gap))]

    def flock(self):
        """Rabbits keep together but not too near, match speeds, and flee from the fox."""
        new = []
        for i, (x, y) in enumerate(self.rabbits):
            ax = ay = 0.0
            for j, (ox, oy) in enumerate(self.rabbits):
                dx, dy = ox - x, oy - y
                d2 = dx * dx + dy * dy + 0.01
                if i != j and d2 < 25.0:
                    pull = 0.01 - 0.02 / d2
                    ax += pull * dx + 0.01 * (self.speeds[j][0] - self.speeds[i][0])
                    ay += pull * dy + 0.01 * (self.speeds[j][1] - self.speeds[i][1])
            dx, dy = x - self.fox[0], y - self.fox[1]
            fear = 0.3 / (dx * dx + dy * dy + 0.1)
            vx = 0.9 * self.speeds[i][0] + ax + fear * dx
            vy = 0.9 * self.speeds[i][1] + ay + fear * dy
            scale = min(1.0, 0.35 / (math.hypot(vx, vy) + 1e-6))
            new.append([vx * scale, vy * scale])
        self.speeds = new
        for place, speed in zip(self.rabbits, new, strict=True):
            place[:] = [min(max(p + v, 0.0), SIZE) for p, v in zip(place, speed, strict=True)]

    def step(self, action):
        for k in (0, 1):
            self.fox[k] = min(max(self.fox[k] + 0.5 * HEADINGS[action][k], 0.0), SIZE)
        self.flock()
        reward = -0.01
        for rabbit in self.rabbits:
            if math.dist(rabbit, self.fox) < 0.5:
                reward += 1.0
                rabbit[:] = self.place()
        self.clock += 1
        return self.look(), reward, self.clock % 300 == 0


def net(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    return x @ params[-1][0] + params[-1][1]


def loss_fn(params, obs, actions, advantages):
    logp = jax.nn.log_softmax(net(params, obs))
    chosen = jnp.take_along_axis(logp, actions[..., None], -1)[..., 0]
    return -(chosen * advantages).mean() + 0.01 * (jnp.exp(logp) * logp).sum(-1).mean()


@jax.jit
def act(params, key, obs):
    key, sub = jax.random.split(key)
    return key, jax.random.categorical(sub, net(params, obs))


def main():
    meadows = [Meadow(s) for s in range(MEADOWS)]
    key, *keys = jax.random.split(jax.random.key(0), 4)
    params = [
        (jax.random.normal(k, (m, n)) / m**0.5, jnp.zeros(n))
        for k, m, n in zip(keys, (2 + 2 * NEAREST, 64, 64), (64, 64, 8), strict=True)
    ]
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    state = optimizer.init(params)
    grad, update = jax.jit(jax.grad(loss_fn)), jax.jit(optimizer.update)
    obs = np.array([m.look() for m in meadows], np.float32)
    pace = Pace.from_args()
    while pace.on():
        rollout = []
        for _ in range(ROLLOUT):
            key, actions = act(params, key, obs)
            actions = np.asarray(actions)
            steps = [m.step(int(a)) for m, a in zip(meadows, actions, strict=True)]
            after, rewards, dones = (np.array(s, np.float32) for s in zip(*steps, strict=True))
            rollout.append((obs, actions, rewards, dones))
            obs = after
        seen, taken, rewards, dones = (np.stack(part) for part in zip(*rollout, strict=True))
        for t in reversed(range(ROLLOUT - 1)):
            rewards[t] += GAMMA * (1 - dones[t]) * rewards[t + 1]
        advantages = rewards - rewards.mean(1, keepdims=True)
        updates, state = update(grad(params, seen, taken, advantages), state)
        params = optax.apply_updates(params, updates)
        pace.add(ROLLOUT * MEADOWS)
    pace.report()


if __name__ == "__main__":
    main()
