"""`corridor`, where all environments are acted for in one call."""

import corridor
import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def act_all(p, key, h, xs):
    h, logits, _ = corridor.cell(p, h, xs)
    key, sub = jax.random.split(key)
    return jax.random.categorical(sub, logits), h, key


class Players:
    def __init__(self, n, key):
        self.hidden = np.zeros((n, corridor.HIDDEN), np.float32)
        self.key = key

    def choose(self, params, observations):
        actions, h, self.key = act_all(params, self.key, jnp.asarray(self.hidden), observations)
        self.hidden = np.array(h)
        return np.asarray(actions)

    def forget(self, i):
        self.hidden[i] = 0.0

    def snapshot(self):
        return self.hidden.copy()


corridor.Players = Players

if __name__ == "__main__":
    corridor.main()
