"""`flock.py` with one call of the policy, and one draw, for all eight boids."""

import flock
import jax
import numpy as np


def choose(params, obs, key):
    key, sub = jax.random.split(key)
    return np.array(jax.random.categorical(sub, flock.policy(params, obs))), key


flock.choose = choose

if __name__ == "__main__":
    flock.train()
