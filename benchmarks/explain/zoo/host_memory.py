"""Fitted Q iteration (JAX) whose memory lives in NumPy: device arrays are made for each update."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from pace import Pace

STORED, OBS, BATCH = 60_000, 64, 64


def init(key):
    k1, k2 = jax.random.split(key)
    return {"a": jax.random.normal(k1, (OBS, 128)) / 8, "b": jax.random.normal(k2, (128, 5)) / 11}


def q(params, x):
    return jax.nn.relu(x @ params["a"]) @ params["b"]


@partial(jax.jit, static_argnames="batch")
def improve(params, states, actions, rewards, key, batch):
    rows = jax.random.randint(key, (batch,), 0, STORED - 1)
    s, s2 = states[rows], states[rows + 1]
    target = rewards[rows] + 0.9 * q(params, s2).max(1)

    def loss(p):
        taken = jnp.take_along_axis(q(p, s), actions[rows][:, None], 1)[:, 0]
        return jnp.mean((taken - target) ** 2)

    grads = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)


class Memory:
    """States in double precision, as the simulator makes them."""

    def __init__(self, rng):
        self.states = rng.normal(size=(STORED, OBS))
        self.actions = rng.integers(0, 5, STORED)
        self.rewards = rng.normal(size=STORED)
        self.at = 0

    def add(self, state, action, reward):
        self.states[self.at], self.actions[self.at] = state, action
        self.rewards[self.at] = reward
        self.at = (self.at + 1) % STORED

    def on_device(self):
        return (
            jax.device_put(jnp.array(self.states, jnp.float32)),
            jax.device_put(jnp.array(self.actions, jnp.int32)),
            jax.device_put(jnp.array(self.rewards, jnp.float32)),
        )


def main():
    pace = Pace.from_args()
    rng = np.random.default_rng(0)
    memory, key = Memory(rng), jax.random.key(0)
    params, state = init(key), np.zeros(OBS)
    while pace.on():
        for _ in range(4):
            values = np.asarray(jax.device_get(params["a"])).T @ state
            action = int(np.argmax(np.maximum(values, 0) @ jax.device_get(params["b"])))
            following = 0.9 * state + rng.normal(size=OBS) + 0.1 * action
            memory.add(state, action, -float(np.square(following).mean()))
            state = following
        key, sub = jax.random.split(key)
        params = improve(params, *memory.on_device(), sub, batch=BATCH)
        jax.block_until_ready(params)
        pace.add()
    pace.report()


if __name__ == "__main__":
    main()
