"""Random numbers as a function of (key, environment, step), by one hash each.

Folding the environment and the step into a key and drawing from it hashes three times; here they
are the counter of a single Threefry-2x32 block (Salmon et al., 2011), as the generator was meant.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def hashes(key: jax.Array, first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32 with 20 rounds of the counters (first, second), as two words each.

    The same numbers as `jax.extend.random.threefry_2x32`, which on a CPU is a loop of small
    kernels; written out it is a single one.

    Args:
        key: raw key data, uint32 ``[2]``.
        first, second: uint32 of one shape.
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


def uniforms(key: jax.Array, env: jax.Array, step: jax.Array, count: int) -> jax.Array:
    """`count` numbers in the open interval (0, 1) for one step of one environment.

    Args:
        key: a typed Threefry key.
        env: the environment's number, int32 scalar.
        step: the environment's step, int32 scalar.
        count: how many; environment numbers times half of it stay below 2^32.

    Returns:
        float32 ``[count]``.
    """
    blocks = -(-count // 2)
    first = jnp.asarray(env, jnp.uint32) * np.uint32(blocks) + jnp.arange(blocks, dtype=jnp.uint32)
    second = jnp.broadcast_to(jnp.asarray(step, jnp.uint32), (blocks,))
    bits = jnp.concatenate(hashes(jax.random.key_data(key), first, second))[:count]
    # The middles of 2^23 equal cells: neither 0 nor 1, whose logarithms are infinite.
    return ((bits >> 9).astype(jnp.float32) + 0.5) * np.float32(2.0**-23)


def gumbels(key: jax.Array, env: jax.Array, step: jax.Array, count: int) -> jax.Array:
    """`count` standard Gumbel numbers, float32; arguments as `uniforms`."""
    return -jnp.log(-jnp.log(uniforms(key, env, step, count)))


def normals(key: jax.Array, env: jax.Array, step: jax.Array, count: int) -> jax.Array:
    """`count` standard normal numbers, float32; arguments as `uniforms`."""
    u = uniforms(key, env, step, count)
    return math.sqrt(2.0) * jax.lax.erf_inv(2.0 * u - 1.0)
