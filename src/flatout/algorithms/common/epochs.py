"""PPO's epochs of minibatches over one batch, as one scan, so that the learner dispatches once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from flatout.algorithms.common.shuffle import permutations
from flatout.algorithms.parallel.shards import Shards

Minibatch = Callable[[Any, Any], tuple[Any, dict[str, jax.Array]]]
"""``(carry, minibatch) -> carry, metrics``: one gradient step."""


def epochs(
    minibatch: Minibatch,
    carry: Any,
    batch: Any,
    *,
    metrics: tuple[str, ...],
    count: int,
    size: int,
    shards: Shards,
    key: jax.Array,
    iteration: jax.Array,
    proceed: Callable[[dict[str, jax.Array]], jax.Array] | None = None,
) -> tuple[Any, dict[str, jax.Array]]:
    """Pass `count` times over a batch's rows in random order, `size` rows at a time.

    Args:
        minibatch: makes one gradient step. With local SGD (`Shards.every` above 1) the shards' new
            carries are averaged when due.
        carry: parameters and the optimiser's state.
        batch: this shard's rows ``[R, ...]``; rows whose `weight` is 0 do not count.
        metrics: the names of the metrics that `minibatch` returns.
        count: the number of epochs.
        size: this shard's rows of a minibatch.
        shards: the shards of the update.
        key: the key of the learning stream.
        iteration: trajectories learned from, this one included, int32.
        proceed: ``metrics of a step -> bool``; False discards this step and all later ones.

    Returns:
        The carry, and each metric's mean over the steps made; ``updates`` is their number.
    """
    rows = batch.advantage.shape[0]
    order, some = _order(batch.weight, rows, count, size, shards, key, iteration)
    steps = count * rows // size
    numbers = None
    if shards.every > 1:
        numbers = (iteration - 1) * steps + 1 + jnp.arange(steps)

    def step(carry: Any, given: tuple[Any, Any, Any]) -> tuple[Any, jax.Array]:
        (learned, going), (rows, number, some) = carry, given
        part = batch if rows is None else jax.tree.map(partial(chosen, rows=rows), batch)
        stepped, values = minibatch(learned, part)
        stepped = shards.sync(stepped, number)
        made = jnp.stack([*(values[name] for name in metrics), jnp.ones(())])
        if proceed is None and some is None:
            return (stepped, going), made
        if proceed is not None:
            going = going & proceed(values)
        apply = going if some is None else going & some
        learned = jax.tree.map(lambda new, old: jnp.where(apply, new, old), stepped, learned)
        return (learned, going), jnp.where(apply, made, 0.0)

    (carry, _), history = jax.lax.scan(
        step, (carry, jnp.asarray(True)), (order, numbers, some), length=steps
    )
    *totals, made = history.sum(0)
    means = {
        name: total / jnp.maximum(made, 1.0) for name, total in zip(metrics, totals, strict=True)
    }
    return carry, means | {"updates": made}


def chosen(leaf: jax.Array, rows: jax.Array) -> jax.Array:
    """Return the rows ``[B, ...]`` of ``[R, ...]`` with the given numbers.

    Rows are flattened for it: a CPU copies rows of several dimensions element by element.
    """
    flat = leaf.reshape(len(leaf), -1).at[rows].get(mode="promise_in_bounds")
    return flat.reshape(len(rows), *leaf.shape[1:])


def _order(
    weight: jax.Array | None, rows: int, count: int, size: int, shards: Shards, key: jax.Array,
    iteration: jax.Array,
) -> tuple[jax.Array | None, jax.Array | None]:  # fmt: skip
    """Return each minibatch's rows ``[steps, size]``, and whether any of them counts ``[steps]``.

    The rows are None if the whole batch is one minibatch, whose mean needs no order. The flags are
    None if all rows count.
    """
    stream = shards.key(key)
    if rows == size:
        order = None
    elif weight is None:
        order = permutations(stream, iteration, count, rows).reshape(-1, size)
    else:  # padding sorts last, so minibatches of padding alone come at the end and are skipped
        drawing = jax.random.fold_in(stream, iteration)
        bits = jax.random.bits(drawing, (count, rows)) >> 1
        bits = jnp.where(weight > 0, bits, jnp.uint32(2**32 - 1))
        order = jnp.argsort(bits, axis=-1).reshape(-1, size)
    if weight is None:
        return order, None
    counted = weight[None] if order is None else weight[order]
    some = shards.sum(counted.sum(-1)) > 0
    return order, jnp.broadcast_to(some, count * rows // size)
