"""Soft actor-critic updates (JAX) as one writes them first: no jit anywhere."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from pace import Pace

OBS, ACT, BATCH = 11, 3, 128


def dense_init(key, sizes):
    params = []
    for i, o in pairwise(sizes):
        key, sub = jax.random.split(key)
        params.append((jax.random.normal(sub, (i, o)) / np.sqrt(i), jnp.zeros(o)))
    return params


def dense(params, x):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    return x @ params[-1][0] + params[-1][1]


def sample_action(actor, obs, key):
    mean, log_std = jnp.split(dense(actor, obs), 2, axis=-1)
    log_std = jnp.clip(log_std, -5, 2)
    noise = jax.random.normal(key, mean.shape)
    action = jnp.tanh(mean + jnp.exp(log_std) * noise)
    logp = -0.5 * noise**2 - log_std - jnp.log(1 - action**2 + 1e-6)
    return action, logp.sum(-1)


def q(critic, obs, action):
    return dense(critic, jnp.concatenate([obs, action], -1))[:, 0]


def sgd(params, grads, rate=3e-4):
    return jax.tree.map(lambda p, g: p - rate * g, params, grads)


def update(state, batch, key):
    """One step of critics, actor and target critics."""
    actor, critics, slow = state
    obs, action, reward, following = batch
    k1, k2 = jax.random.split(key)
    a2, logp2 = sample_action(actor, following, k1)
    best = jnp.minimum(q(slow[0], following, a2), q(slow[1], following, a2))
    target = reward + 0.99 * (best - 0.2 * logp2)

    def critic_loss(c):
        errors = [jnp.mean((q(one, obs, action) - target) ** 2) for one in c]
        return errors[0] + errors[1]

    critics = sgd(critics, jax.grad(critic_loss)(critics))

    def actor_loss(a):
        new, logp = sample_action(a, obs, k2)
        return jnp.mean(0.2 * logp - jnp.minimum(q(critics[0], obs, new), q(critics[1], obs, new)))

    actor = sgd(actor, jax.grad(actor_loss)(actor))
    slow = jax.tree.map(lambda s, c: 0.995 * s + 0.005 * c, slow, critics)
    return actor, critics, slow


def main():
    pace = Pace.from_args()
    rng, keys = np.random.default_rng(0), jax.random.split(jax.random.key(0), 4)
    critics = [dense_init(k, (OBS + ACT, 64, 64, 1)) for k in keys[:2]]
    state = dense_init(keys[2], (OBS, 64, 64, 2 * ACT)), critics, critics
    stored = rng.normal(size=(20_000, OBS)).astype(np.float32)
    acted = rng.uniform(-1, 1, (20_000, ACT)).astype(np.float32)
    paid = -np.square(stored[:, :ACT] - acted).sum(1)
    key = keys[3]
    while pace.on():
        rows = rng.integers(0, 19_999, BATCH)
        key, sub = jax.random.split(key)
        batch = stored[rows], acted[rows], paid[rows], stored[rows + 1]
        state = update(state, batch, sub)
        pace.add()
    jax.block_until_ready(state)
    pace.report()


if __name__ == "__main__":
    main()
