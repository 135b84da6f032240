"""Offline fitted Q evaluation with an ensemble of small critics (JAX, own Adam)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pace import Pace

OBS, HIDDEN, ENSEMBLE, GAMMA = 6, 32, 6, 0.97


class Adam:
    def __init__(self, params, lr=3e-4, b1=0.9, b2=0.999, eps=1e-8):
        self.lr, self.b1, self.b2, self.eps = lr, b1, b2, eps
        self.mean = jax.tree.map(jnp.zeros_like, params)
        self.square = jax.tree.map(jnp.zeros_like, params)
        self.t = 0

    def update(self, params, grads):
        self.t += 1
        b1, b2 = self.b1, self.b2
        self.mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, self.mean, grads)
        self.square = jax.tree.map(lambda s, g: b2 * s + (1 - b2) * g * g, self.square, grads)
        c1, c2 = 1 - b1**self.t, 1 - b2**self.t
        return jax.tree.map(
            lambda p, m, s: p - self.lr * (m / c1) / (jnp.sqrt(s / c2) + self.eps),
            params,
            self.mean,
            self.square,
        )


class Batch(NamedTuple):
    obs: jax.Array
    reward: jax.Array
    next_obs: jax.Array


def init_critic(key):
    sizes = [OBS, HIDDEN, HIDDEN, 1]
    keys = jax.random.split(key, 3)
    return [
        {"w": jax.random.normal(k, (i, o)) / np.sqrt(i), "b": jnp.zeros(o)}
        for k, i, o in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def value(critic, obs):
    for layer in critic[:-1]:
        obs = jax.nn.relu(obs @ layer["w"] + layer["b"])
    return (obs @ critic[-1]["w"] + critic[-1]["b"])[..., 0]


@jax.jit
def gradients(critics, targets, batch):
    """Each critic regresses on the most pessimistic of the targets."""
    lowest = jnp.min(jnp.stack([value(t, batch.next_obs) for t in targets]), axis=0)
    goal = batch.reward + GAMMA * lowest

    def loss(critics):
        return sum(jnp.mean((value(c, batch.obs) - goal) ** 2) for c in critics)

    return jax.grad(loss)(critics)


def logged_data(n, rng):
    obs = rng.normal(size=(n, OBS)).astype(np.float32)
    next_obs = (0.9 * obs + 0.3 * rng.normal(size=obs.shape)).astype(np.float32)
    return obs, np.cos(obs[:, 0]) - 0.1 * np.abs(obs).sum(axis=1), next_obs


def main():
    pace = Pace.from_args()
    rng = np.random.default_rng(5)
    obs, reward, next_obs = logged_data(50_000, rng)
    critics = [init_critic(k) for k in jax.random.split(jax.random.key(5), ENSEMBLE)]
    targets = critics
    adam = Adam(critics)
    while pace.on():
        idx = rng.integers(len(obs), size=128)
        batch = Batch(obs[idx], reward[idx].astype(np.float32), next_obs[idx])
        critics = adam.update(critics, gradients(critics, targets, batch))
        targets = jax.tree.map(lambda t, c: 0.995 * t + 0.005 * c, targets, critics)
        pace.add()
    estimate = np.asarray(jnp.stack([value(c, obs[:1000]) for c in critics]))
    print(f"value {estimate.mean():.3f} +- {estimate.mean(axis=1).std():.3f}")
    pace.report()


if __name__ == "__main__":
    main()
