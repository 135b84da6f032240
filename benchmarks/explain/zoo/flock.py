"""Policy gradient (JAX) for a flock of eight boids that share a policy; no environment library."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from pace import Pace

BOIDS, LENGTH = 8, 32


def init_policy(key):
    sizes = [(6, 64), (64, 64), (64, 4)]
    keys = jax.random.split(key, len(sizes))
    return [
        (jax.random.normal(k, s) / jnp.sqrt(s[0]), jnp.zeros(s[1]))
        for k, s in zip(keys, sizes, strict=True)
    ]


def policy(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def flock_step(pos, vel, moves):
    """Boids accelerate; reward for staying near the flock and apart from each other."""
    turn = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], np.float32)[moves]
    vel = 0.9 * vel + 0.1 * turn
    pos = pos + vel
    gap = np.linalg.norm(pos[:, None] - pos[None], axis=-1) + 10 * np.eye(BOIDS)
    reward = -0.1 * np.linalg.norm(pos - pos.mean(0), axis=1) - (gap.min(1) < 0.3)
    return pos.astype(np.float32), vel.astype(np.float32), reward.astype(np.float32)


def observe(pos, vel):
    return np.concatenate([pos - pos.mean(0), vel, vel - vel.mean(0)], axis=1)


def choose(params, obs, key):
    """A move for every boid."""
    moves = []
    for boid in range(BOIDS):
        key, sub = jax.random.split(key)
        moves.append(int(jax.random.categorical(sub, policy(params, obs[boid]))))
    return np.array(moves), key


@partial(jax.jit, donate_argnums=0)
def learn(params, obs, moves, returns):
    def loss(p):
        logp = jax.nn.log_softmax(policy(p, obs))
        taken = jnp.take_along_axis(logp, moves[..., None], -1)[..., 0]
        return -(taken * (returns - returns.mean())).mean()

    return jax.tree.map(lambda p, g: p - 3e-3 * g, params, jax.grad(loss)(params))


def train():
    pace = Pace.from_args()
    params, key = init_policy(jax.random.key(0)), jax.random.key(1)
    rng = np.random.default_rng(0)
    while pace.on():
        pos = rng.normal(size=(BOIDS, 2)).astype(np.float32)
        vel = np.zeros_like(pos)
        seen, done, rewards = [], [], []
        for _ in range(LENGTH):
            obs = observe(pos, vel)
            moves, key = choose(params, obs, key)
            pos, vel, reward = flock_step(pos, vel, moves)
            seen.append(obs)
            done.append(moves)
            rewards.append(reward)
        returns = np.cumsum(np.array(rewards)[::-1], axis=0)[::-1]
        params = learn(params, np.array(seen), np.array(done), returns)
        pace.add(BOIDS * LENGTH)
    pace.report()


if __name__ == "__main__":
    train()
