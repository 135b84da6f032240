"""Forest fires in JAX: wind and humidity are fitted so that as much burns as was observed."""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
from phases import phase

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


@jax.jit
def burn(parameters, key):
    wind, humidity = parameters

    def hour(carry, key):
        heat, fuel = carry
        spread = sum(jnp.roll(heat, shift, axis) for axis in (0, 1) for shift in (1, -1))
        heat = jnp.clip(0.2 * spread + wind * jnp.roll(heat, 1, 1) - humidity, 0, 1) * fuel
        heat = heat * (jax.random.uniform(key, heat.shape) < 0.9)
        return (heat, jnp.clip(fuel - 0.3 * heat, 0, 1)), None

    heat = jnp.zeros((200, 200)).at[95:105, 95:105].set(1.0)
    (_, fuel), _ = jax.lax.scan(hour, (heat, jnp.ones((200, 200))), jax.random.split(key, 40))
    return 1 - fuel.mean()


rng = np.random.default_rng(args.seed)
observed = burn(jnp.array([0.3, 0.02]), jax.random.key(7))
centre, width, day, start = np.array([0.1, 0.1]), np.array([0.2, 0.1]), 0, time.time()
while time.time() - start < args.seconds:
    guesses = np.abs(centre + width * rng.normal(size=(16, 2)))
    with phase("own"):
        key = jax.random.key(day)
        burnt = [float(burn(jnp.asarray(guess, jnp.float32), key)) for guess in guesses]
    with phase("learning"):
        best = np.argsort(np.abs(np.array(burnt) - float(observed)))[:4]
        centre, width = guesses[best].mean(axis=0), np.maximum(0.9 * width, 0.005)
    day += 1
    print(f"day {day}: wind {centre[0]:.3f}, humidity {centre[1]:.3f}", flush=True)
