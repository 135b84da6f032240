"""Random words as pure functions of keys and counters, for samplers, algorithms and replay.

On a CPU, JAX's own functions are loops of small kernels, which are slower.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


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


def is_typed_key(leaf: Any) -> bool:
    """Return whether an array or a shape (`jax.ShapeDtypeStruct`) is of typed random keys."""
    return jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)


def raw(leaf: Any) -> Any:
    """Return the raw words of typed random keys, which NumPy can hold; return all else as it is."""
    return jax.random.key_data(leaf) if is_typed_key(leaf) else leaf
