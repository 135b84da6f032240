"""Memory in a T-maze, whose hint shows in the first cell only: a GRU policy by REINFORCE, JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pace import Pace

HIDDEN, N_ENVS, HORIZON = 96, 16, 32


class TMaze:
    """Actions: forward, left, right."""

    def __init__(self, seed, length=10):
        self.rng, self.length = np.random.default_rng(seed), length
        self.reset()

    def reset(self):
        self.hint = 1 if self.rng.random() < 0.5 else -1
        self.pos, self.age = 0, 0
        return self.observe()

    def observe(self):
        at_end = float(self.pos == self.length)
        return (self.hint if self.pos == 0 else 0.0, at_end, 1.0 - at_end, self.age / 30.0)

    def step(self, action):
        self.age += 1
        reward, done = -0.02, self.age >= 30
        if self.pos < self.length:
            self.pos += action == 0
        elif action > 0:
            reward, done = (1.0 if (action == 1) == (self.hint == 1) else -1.0), True
        return (self.reset() if done else self.observe()), reward, done


def cell(p, h, x):
    r, z = jnp.split(jax.nn.sigmoid(x @ p["wx"] + h @ p["wh"]), 2, axis=-1)
    n = jnp.tanh(x @ p["nx"] + (r * h) @ p["nh"])
    h = (1 - z) * h + z * n
    return h, h @ p["pi"], (h @ p["v"])[..., 0]


@jax.jit
def act(p, key, h, x):
    h, logits, _ = cell(p, h, x)
    key, sub = jax.random.split(key)
    return jax.random.categorical(sub, logits), h, key


def loss(p, h0, xs, resets, actions, returns):
    def body(h, inp):
        x, reset = inp
        h, logits, v = cell(p, h * (1 - reset)[:, None], x)
        return h, (logits, v)

    _, (logits, values) = jax.lax.scan(body, h0, (xs, resets))
    taken = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], -1)[..., 0]
    adv = jax.lax.stop_gradient(returns - values)
    return (-taken * adv + 0.5 * (returns - values) ** 2).mean()


class Players:
    """The hidden states of all environments, and what to do next in them."""

    def __init__(self, n, key):
        self.hidden = [np.zeros(HIDDEN, np.float32) for _ in range(n)]
        self.key = key

    def choose(self, params, observations):
        actions = []
        for i, obs in enumerate(observations):
            action, self.hidden[i], self.key = act(params, self.key, self.hidden[i], obs)
            actions.append(int(action))
        return np.array(actions)

    def forget(self, i):
        self.hidden[i] = np.zeros(HIDDEN, np.float32)

    def snapshot(self):
        return np.stack([np.asarray(h) for h in self.hidden])


def main():
    envs = [TMaze(s) for s in range(N_ENVS)]
    shapes = {"wx": (4, 2 * HIDDEN), "wh": (HIDDEN, 2 * HIDDEN), "nx": (4, HIDDEN)}
    shapes |= {"nh": (HIDDEN, HIDDEN), "pi": (HIDDEN, 3), "v": (HIDDEN, 1)}
    rng = np.random.default_rng(0)
    params = {k: jnp.float32(rng.normal(size=s) / s[0] ** 0.5) for k, s in shapes.items()}
    tx = optax.adam(1e-3)
    opt, grad, update = tx.init(params), jax.jit(jax.grad(loss)), jax.jit(tx.update)
    players = Players(N_ENVS, jax.random.key(1))
    obs, resets = np.array([e.observe() for e in envs], np.float32), np.zeros(N_ENVS, np.float32)
    pace = Pace.from_args()
    while pace.on():
        h0, log = players.snapshot(), []
        for _ in range(HORIZON):
            actions = players.choose(params, obs)
            steps = [e.step(a) for e, a in zip(envs, actions, strict=True)]
            after, rewards, dones = (np.array(s, np.float32) for s in zip(*steps, strict=True))
            log.append((obs, resets, actions, rewards, dones))
            for i in np.flatnonzero(dones):
                players.forget(i)
            obs, resets = after, dones
        xs, rs, acts, returns, dones = (np.stack(part) for part in zip(*log, strict=True))
        for t in reversed(range(HORIZON - 1)):
            returns[t] += 0.97 * (1 - dones[t]) * returns[t + 1]
        updates, opt = update(grad(params, h0, xs, rs, acts, returns), opt)
        params = optax.apply_updates(params, updates)
        pace.add(HORIZON * N_ENVS)
    pace.report()


if __name__ == "__main__":
    main()
