"""The pooling of the built-in classifiers, compared with XLA's reduction."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flatout.supervised.networks import pool


@pytest.mark.parametrize("shape", [(3, 6, 4, 2), (2, 5, 7, 3)])
def test_pooling_and_its_gradient_are_those_of_a_maximum(shape: tuple[int, ...]) -> None:
    """To the bit, also where pixels of a square are equal, as in an image's background."""
    x = np.random.default_rng(1).integers(-1, 2, shape).astype(np.float32)

    def wanted(x: jax.Array) -> jax.Array:
        batch, rows, columns, channels = x.shape
        x = x[:, : rows // 2 * 2, : columns // 2 * 2]
        return x.reshape(batch, rows // 2, 2, columns // 2, 2, channels).max((2, 4))

    @jax.jit
    def both(x: jax.Array) -> Any:
        (out, pull), (other, push) = jax.vjp(pool, x), jax.vjp(wanted, x)
        return (out, pull(jnp.sin(out + 1.3))), (other, push(jnp.sin(out + 1.3)))

    found, plain = both(x)
    jax.tree.map(np.testing.assert_array_equal, found, plain)
