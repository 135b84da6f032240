"""Random numbers: a run's independent streams, words as pure functions of keys and counters, and
draws as functions of (key, environment, step).

On a CPU, JAX's own functions are loops of small kernels, which are slower. Folding the environment
and the step into a key and drawing from it also hashes three times. Here both are the counter of a
Threefry-2x32 block (Salmon et al., 2011), which is how that generator was designed.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA

INIT, LEARN, ACT, REPLAY, DATA, ENVS = range(6)
"""The numbers of a run's independent random streams (see `raw_key`)."""


def wrap_key(data: Any) -> jax.Array:
    """Return the typed random key of raw data, uint32 ``[2]`` (Threefry)."""
    return jax.random.wrap_key_data(data, impl="threefry2x32")


def raw_key(seed: int, *stream: int) -> np.ndarray:
    """Return the raw key, uint32 ``[2]``, of one of a run's independent random streams."""
    return np.random.SeedSequence(seed, spawn_key=stream).generate_state(2, np.uint32)


def is_typed_key(leaf: Any) -> bool:
    """Return whether an array or a shape (`jax.ShapeDtypeStruct`) is of typed random keys."""
    return jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)


def raw(leaf: Any) -> Any:
    """Return the raw words of typed random keys, which NumPy can hold; return all else as it is."""
    return jax.random.key_data(leaf) if is_typed_key(leaf) else leaf


def hashes(key: jax.Array, first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return Threefry-2x32 with 20 rounds of the counters (Salmon et al., 2011).

    The numbers are those of `jax.extend.random.threefry_2x32`, which on a CPU is a loop of small
    kernels. With the rounds unrolled it is a single kernel.

    Args:
        key: raw key data, uint32 ``[2]``.
        first, second: the two words of each counter, uint32 of one shape.

    Returns:
        Two words for each counter: two uint32 arrays of that shape.
    """
    schedule = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(PARITY))
    a, b = first + schedule[0], second + schedule[1]
    for turn in range(5):
        for rotation in ROTATIONS[turn % 2]:
            a = a + b
            b = (b << rotation | b >> (32 - rotation)) ^ a
        a = a + schedule[(turn + 1) % 3]
        b = b + schedule[(turn + 2) % 3] + np.uint32(turn + 1)
    return a, b


def mix(x: jax.Array) -> jax.Array:
    """Hash 32 bits to 32 bits, one to one: ``lowbias32`` of Wellons (2018)."""
    x = x ^ (x >> 16)
    x = x * jnp.uint32(0x7FEB352D)
    x = x ^ (x >> 15)
    x = x * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def word(key: jax.Array) -> jax.Array:
    """Return 32 random bits, a hash of a typed key of two words."""
    words = jax.random.key_data(key)
    return mix(words[0] ^ mix(words[1]))


def uniforms(key: jax.Array, env: jax.Array, step: jax.Array, count: int) -> jax.Array:
    """Return `count` numbers in the open interval (0, 1) for one step of one environment.

    Args:
        key: a typed Threefry key.
        env: the environment's number, int32 scalar.
        step: the environment's step, int32 scalar.
        count: how many; environment numbers times half of `count` must stay below 2^32.

    Returns:
        float32 ``[count]``.
    """
    blocks = -(-count // 2)
    first = jnp.asarray(env, jnp.uint32) * np.uint32(blocks) + jnp.arange(blocks, dtype=jnp.uint32)
    second = jnp.broadcast_to(jnp.asarray(step, jnp.uint32), (blocks,))
    bits = jnp.concatenate(hashes(jax.random.key_data(key), first, second))[:count]
    # Midpoints of 2^23 equal cells: never 0 or 1, where Gumbel and normal numbers are infinite.
    return ((bits >> 9).astype(jnp.float32) + 0.5) * np.float32(2.0**-23)


def gumbels(key: jax.Array, env: jax.Array, step: jax.Array, count: int) -> jax.Array:
    """Return `count` standard Gumbel numbers, float32; arguments as in `uniforms`."""
    return -jnp.log(-jnp.log(uniforms(key, env, step, count)))


def normals(key: jax.Array, env: jax.Array, step: jax.Array, count: int) -> jax.Array:
    """Return `count` standard normal numbers, float32; arguments as in `uniforms`."""
    u = uniforms(key, env, step, count)
    return math.sqrt(2.0) * jax.lax.erf_inv(2.0 * u - 1.0)
