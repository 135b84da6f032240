"""Gradients of the algorithms' losses, computed in micro-batches if the settings ask for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from flatout.algorithms.parallel.shards import UNSHARDED, Shards
from flatout.errors import UsageError

Losses = tuple[jax.Array, tuple[Any, Any]]
"""A mean over rows, and ``(further means over rows, arrays of one entry per row)``."""

Loss = Callable[..., Losses]
"""``(params, batch, *shared) -> mean over rows, (further means, arrays of one entry per row)``."""
Gradient = Callable[..., tuple[Any, Any, Any]]
"""``(params, batch, *shared) -> gradient, means over rows, arrays with one entry per row``."""


def gradient(
    loss: Loss, rows: int, micro_batch: int | None = None, shards: Shards = UNSHARDED,
    merged: Loss | None = None, apart: Shards | None = None,
) -> Gradient:  # fmt: skip
    """Return the gradient function of a loss that is a mean over rows.

    With a `micro_batch`, the gradient is accumulated over blocks of a shard's rows. Gradient and
    means are averaged over the shards, except with local SGD (`Shards.every` above 1). The loss
    must not close over traced arrays; pass them as `shared`, which is equal in all shards.

    Args:
        loss: a `Loss` that needs no other shard.
        rows: rows of the batch over all shards.
        micro_batch: rows of a shard whose gradient is computed at once; None for all.
        shards: the shards of the update.
        merged: replaces `loss` for all rows of a device, if its mean needs the other shards; see
            `Shards.as_one_batch`.
        apart: the shards over which the loss is computed; None for `shards`. Averages use `shards`.

    Raises:
        UsageError: the micro-batch does not divide the rows of a shard.
    """

    def compute(loss: Loss, params: Any, batch: Any, *shared: Any) -> tuple[Any, Any]:
        (value, (means, each)), grads = jax.value_and_grad(loss, has_aux=True)(
            params, batch, *shared
        )
        return (grads, value, means), each

    apart = shards if apart is None else apart
    whole = None if merged is None else functools.partial(compute, merged)
    plain = together = apart.as_one_batch(functools.partial(compute, loss), whole)
    rows //= shards.count
    size = min(micro_batch or rows, rows)
    if rows % size:
        raise UsageError(
            f"micro_batch = {size} does not divide the {rows} rows of a shard's batch; "
            f"choose a divisor such as {max(n for n in range(1, size) if not rows % n)}."
        )
    pieces = rows // size

    def accumulate(params: Any, batch: Any, *shared: Any) -> tuple[Any, Any]:
        parted = jax.tree.map(lambda x: x.reshape(pieces, -1, *x.shape[1:]), batch)
        first = jax.tree.map(lambda x: x[0], parted)
        means, _ = jax.eval_shape(plain, params, first, *shared)
        zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), means)

        def add(totals: Any, piece: Any) -> tuple[Any, Any]:
            means, rows = plain(params, piece, *shared)
            return jax.tree.map(jnp.add, totals, means), rows

        totals, rows = jax.lax.scan(add, zeros, parted)
        means = jax.tree.map(lambda total: total / pieces, totals)
        return means, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)

    if pieces > 1:
        together = accumulate

    def average(params: Any, batch: Any, *shared: Any) -> tuple[Any, Any, Any]:
        (grads, value, means), each = together(params, batch, *shared)
        grads, means = shards.each_step.mean((grads, {"loss": value} | means))
        return grads, means, each

    return average
