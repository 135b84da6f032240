# policy gradient on a drifting boat, episodes end on the rocks

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pace import Pace

rng = np.random.default_rng(0)
GAMMA, LR, EPISODES, LIMIT = 0.99, 3e-3, 2, 1500


def init(key, sizes=(5, 32, 3)):
    ks = jax.random.split(key, len(sizes))
    ps = [jax.random.normal(k, (i, o)) / i**0.5 for k, i, o in zip(ks, sizes, sizes[1:])]  # noqa: B905
    return {"w": ps, "b": [jnp.zeros(o) for o in sizes[1:]]}


def logits(p, x):
    for w, b in zip(p["w"][:-1], p["b"][:-1]):  # noqa: B905
        x = jnp.tanh(x @ w + b)
    return x @ p["w"][-1] + p["b"][-1]


def np_policy(p, x):
    for w, b in zip(p["w"][:-1], p["b"][:-1]):  # noqa: B905
        x = np.tanh(x @ w + b)
    z = x @ p["w"][-1] + p["b"][-1]
    e = np.exp(z - z.max())
    return e / e.sum()


def episode(p):
    """sail until the rocks (|y| > 1) or the LIMIT"""
    y, v, wind, phase = 0.0, 0.0, 0.0, rng.uniform(0, 6.28)
    calm = rng.uniform(0.2, 1.0)
    obs, acts, rews = [], [], []
    for t in range(LIMIT):
        o = np.array([y, v, wind, np.sin(phase + 0.05 * t), calm], np.float32)
        a = int(np.searchsorted(np.cumsum(np_policy(p, o))[:2], rng.random()))
        wind = 0.95 * wind + calm * 0.02 * rng.normal()
        v = 0.9 * v + 0.02 * (a - 1) + 0.1 * wind
        y += 0.5 * v
        obs.append(o)
        acts.append(a)
        rews.append(1.0 - abs(y))
        if abs(y) > 1.0:
            break
    return np.array(obs), np.array(acts), np.array(rews, np.float32)


def discount(r):
    out, g = np.zeros_like(r), 0.0
    for t in range(len(r) - 1, -1, -1):
        out[t] = g = r[t] + GAMMA * g
    return out


tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(LR))


@jax.jit
@jax.grad
def gradient(p, obs, acts, adv, mask):
    lp = jax.nn.log_softmax(logits(p, obs))
    return -((lp * jax.nn.one_hot(acts, 3)).sum(-1) * adv * mask).sum() / mask.sum()


@jax.jit
def descend(p, s, g):
    u, s = tx.update(g, s)
    return optax.apply_updates(p, u), s


def batch(parts):
    """all steps of all episodes, one after the other"""
    obs, acts, adv = (np.concatenate(x) for x in zip(*parts))  # noqa: B905
    return obs, acts, adv, np.ones(len(acts), np.float32)


def main():
    p = init(jax.random.key(0))
    s = tx.init(p)
    pace = Pace.from_args()
    while pace.on():
        p_np = jax.tree.map(np.asarray, p)
        parts, steps = [], 0
        for _ in range(EPISODES):
            o, a, r = episode(p_np)
            g = discount(r)
            parts.append((o, a, (g - g.mean()) / (g.std() + 1e-6)))
            steps += len(r)
        p, s = descend(p, s, gradient(p, *batch(parts)))
        pace.add(steps)
    jax.block_until_ready(p)
    pace.report()


if __name__ == "__main__":
    main()
