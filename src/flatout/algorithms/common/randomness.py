"""Random numbers for acting and updates, as a function of (key, environment, step) with one hash.

Folding the environment and the step into a key and drawing from it hashes three times. Here both
are the counter of a Threefry-2x32 block (Salmon et al., 2011), which is how that generator was
designed.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from flatout.hashes import hashes


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
