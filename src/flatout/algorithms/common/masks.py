"""Masks of allowed actions, applied to the outputs by which an action is chosen.

An output of a forbidden value becomes `FORBIDDEN`. So a softmax gives it probability 0, a maximum
never takes it, and no gradient passes through it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from flatout.actions import mask_columns
from flatout.types import ActionSpec

FORBIDDEN = np.float32(np.finfo(np.float32).min / 2)
"""Far below every output, and finite: a product with a probability of 0 is 0, not NaN."""


def masked(x: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Return outputs ``[..., P]`` with those that a mask ``[..., P]`` forbids replaced; None allows
    all."""
    return x if mask is None else jnp.where(mask, x, FORBIDDEN)


def parameter_mask(spec: ActionSpec, mask: jax.Array | None) -> jax.Array | None:
    """Return a mask of the outputs ``[B, P]`` of a distribution, for the mask ``[B, K]`` of an
    action's choices: a box has outputs, which are always allowed, but no entries in K."""
    if mask is None:
        return None
    columns = np.array(mask_columns(spec))
    if (columns >= 0).all():  # they are in the mask's order
        return mask
    return jnp.where(columns < 0, True, mask[:, columns])


def drawn(uniform: jax.Array, mask: jax.Array) -> jax.Array:
    """Return allowed values, int32 ``[B]``, each equally probable.

    Args:
        uniform: ``[B]``, from 0 to 1.
        mask: ``[B, n]``; the value 0 is returned where nothing is allowed.
    """
    count = mask.sum(-1)
    rank = jnp.minimum(jnp.floor(uniform * count), count - 1)  # a product may be rounded up
    return ((jnp.cumsum(mask, -1) > rank[:, None]) & mask).argmax(-1).astype(jnp.int32)
