"""Logical shards: how one update is split into shards that differ only in their data, and gradients
that are averaged over them. Algorithms use them, and `flatout.engine.mesh` maps them over devices.

Each shard has its own environments, rows and random numbers, and their gradients or parameters are
averaged. The number of shards decides what is computed; the number of devices does not.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from flatout.errors import UsageError
from flatout.packing import Packing

DEVICES, SHARDS = "devices", "shards"
"""The axes of a sharded program: devices, and the shards on each device."""

Tree = TypeVar("Tree")
Pure = TypeVar("Pure", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Shards:
    """The shards of an update and how they exchange values. A single shard exchanges nothing.

    Attributes:
        count: S, the number of shards.
        every: 1 averages gradients at each update; K above 1 averages parameters after every K
            updates (local SGD; Stich, 2019), and always before anything leaves the device.
        ordered: whether sums are made in the shards' order, with the same bits on any number of
            devices, or in the fastest order.
        mapped: True if the program has axes of devices and of shards on a device. False if it has
            one axis of all shards, which the compiler divides over the devices.
        waits: a number that every sum depends on, or None (see `after`).
    """

    count: int = 1
    every: int = 1
    ordered: bool = False
    mapped: bool = True
    waits: jax.Array | None = None

    def after(self, done: jax.Array | None) -> Shards:
        """Return shards whose sums start only after the number `done` has been computed.

        Without this, a sum over devices may run at the same time as a loop that also sums
        over devices. The CPU client of XLA (JAX 0.10) confuses the two and crashes.
        """
        return dataclasses.replace(self, waits=done)

    @property
    def each_step(self) -> Shards:
        """The shards that an update averages over: `UNSHARDED` if only parameters are averaged."""
        return self if self.every == 1 else UNSHARDED

    def one_by_one(self, function: Pure) -> Pure:
        """Wrap a function of one shard's arrays that needs no other shard.

        With ordered sums, a device computes its shards one after another, by the same program for
        any number of shards: if 8 shards are computed at once, XLA rounds some products and sums
        differently than for 1. The function must not close over traced arrays.
        """
        if self.count == 1 or not self.ordered or not self.mapped:
            return function
        alone = jax.custom_batching.custom_vmap(function)

        @alone.def_vmap
        def in_turn(size: int, mapped: Any, *given: Any) -> Any:
            def compute(number: Any) -> Any:
                def pick(x: jax.Array, batched: bool) -> jax.Array:
                    return jax.lax.dynamic_index_in_dim(x, number, 0, False) if batched else x

                # The shard's number passes the barriers, too. Otherwise XLA would see that a single
                # shard's result does not depend on it, and move `function` out of the loop.
                part = jax.tree.map(pick, given, tuple(mapped))
                number, part = jax.lax.optimization_barrier((number, part))
                return jax.lax.optimization_barrier((number, function(*part)))[1]

            def body(number: jax.Array, results: Any) -> Any:
                def put(all: jax.Array, one: jax.Array) -> jax.Array:
                    return jax.lax.dynamic_update_index_in_dim(all, one, number, 0)

                return jax.tree.map(put, results, compute(number))

            shapes = jax.eval_shape(compute, 0)
            results = jax.tree.map(lambda one: jnp.zeros((size, *one.shape), one.dtype), shapes)
            # The count is behind a barrier because XLA unrolls a loop that runs once.
            count = jax.lax.optimization_barrier(jnp.int32(size))
            results = jax.lax.fori_loop(0, count, body, results)
            return results, jax.tree.map(lambda _: True, results)

        return alone  # type: ignore[return-value]

    def as_one_batch(self, compute: Pure, merged: Pure | None = None) -> Pure:
        """Wrap a mean over a shard's rows so that a device computes it over all its shards' rows.

        Each shard then gets its device's mean, and a device takes as long for S shards as for one,
        because the shards share the matrix products. The result is the same: separate gradients
        would be averaged anyway. Shards stay separate if sums are ordered or parameters differ.

        Args:
            compute: ``(params, batch, *shared) -> (means over rows, arrays with one entry per
                row)``.
            merged: called instead of `compute` on all rows of a device, if `compute` itself
                averages over shards; `merged` averages `over_devices`.
        """
        if self.count == 1 or self.ordered or not self.mapped or self.every > 1:
            return self.one_by_one(compute)
        whole = compute if merged is None else merged
        function = jax.custom_batching.custom_vmap(compute)

        @function.def_vmap
        def together(size: int, mapped: Any, params: Any, batch: Any, *shared: Any) -> Any:
            of_params, rows, *of_shared = mapped
            if any(jax.tree.leaves((of_params, of_shared))):
                axes = jax.tree.map(lambda batched: 0 if batched else None, tuple(mapped))
                results = jax.vmap(compute, axes)(params, batch, *shared)
                return results, jax.tree.map(lambda _: True, results)

            def merge(x: jax.Array, batched: bool) -> jax.Array:
                x = x if batched else jnp.broadcast_to(x, (size, *x.shape))
                return x.reshape(-1, *x.shape[2:])

            means, each = whole(params, jax.tree.map(merge, batch, rows), *shared)
            each = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), each)
            shared_means = jax.tree.map(lambda _: False, means)
            return (means, each), (shared_means, jax.tree.map(lambda _: True, each))

        return function  # type: ignore[return-value]

    def sync(self, tree: Tree, updates: jax.Array) -> Tree:
        """Average parameters over the shards if `updates` is a multiple of `every` (local SGD)."""
        if self.every == 1:
            return tree
        return jax.lax.cond(updates % self.every == 0, self.sync_now, lambda same: same, tree)

    def sync_now(self, tree: Tree) -> Tree:
        """Average every float leaf over the shards (local SGD); other leaves stay."""
        if self.every == 1:
            return tree
        floats, rest = eqx.partition(tree, lambda leaf: jnp.issubdtype(leaf.dtype, jnp.inexact))
        return eqx.combine(self.mean(floats), rest)

    def sum(self, tree: Tree) -> Tree:
        """Sum every leaf over the shards.

        Several leaves, which must be floats of at most 32 bits, are sent between devices as one
        vector: one call per leaf would take longer than copying them.
        """
        if self.count == 1:
            return tree
        if self.waits is not None:
            return dataclasses.replace(self, waits=None).sum((tree, self.waits))[0]
        if self.ordered or not self.mapped:
            return self._sum_packed(tree)
        tree = jax.tree.map(lambda leaf: jax.lax.psum(leaf, SHARDS), tree)
        return tree if jax.lax.axis_size(DEVICES) == 1 else self._sum_packed(tree)

    def _sum_packed(self, tree: Tree) -> Tree:
        if len(jax.tree.leaves(tree)) < 2 or not self.mapped:
            return jax.tree.map(self._sum_array, tree)
        packing = Packing(tree)
        return packing.unpack(self._sum_array(packing.pack(tree)))

    def _sum_array(self, x: jax.Array) -> jax.Array:
        if self.ordered:
            # The barrier keeps XLA from fusing later code with this sum, whose program depends on
            # the number of devices.
            return jax.lax.optimization_barrier(functools.reduce(jnp.add, self.gather(x[None])))
        return jax.lax.psum(x, DEVICES if self.mapped else SHARDS)

    def mean(self, tree: Tree) -> Tree:
        """Average every leaf over the shards."""
        if self.count == 1:
            return tree
        return jax.tree.map(lambda leaf: leaf / self.count, self.sum(tree))

    def gather(self, x: jax.Array) -> jax.Array:
        """Return all shards' arrays ``[n, ...]`` one after another, ``[S * n, ...]``."""
        if self.count == 1:
            return x
        here = jax.lax.all_gather(x, SHARDS, axis=0, tiled=True)
        return jax.lax.all_gather(here, DEVICES, axis=0, tiled=True) if self.mapped else here

    def local(self, x: jax.Array) -> jax.Array:
        """Return this shard's part ``[n, ...]`` of ``[S * n, ...]``; this is the inverse of
        `gather`."""
        if self.count == 1:
            return x
        size = x.shape[0] // self.count
        return jax.lax.dynamic_slice_in_dim(x, self.index() * size, size)

    def index(self) -> jax.Array:
        """Return this shard's number, int32."""
        if self.count == 1:
            return jnp.zeros((), jnp.int32)
        if not self.mapped:
            return jax.lax.axis_index(SHARDS)
        here = jax.lax.axis_size(SHARDS)
        return jax.lax.axis_index(DEVICES) * here + jax.lax.axis_index(SHARDS)

    def key(self, key: jax.Array) -> jax.Array:
        """Return the key of this shard's random stream."""
        return key if self.count == 1 else jax.random.fold_in(key, self.index())


UNSHARDED = Shards()
"""A single shard: the whole batch at once."""


def over_devices(tree: Tree) -> Tree:
    """Average every leaf over the devices. The caller has a device's shards as one batch."""
    return jax.lax.pmean(tree, DEVICES)


def by_axis(function: Callable[..., Any], axes: Any, *trees: Any) -> Any:
    """Call `jax.tree.map` with `axes`, a pytree prefix in which None is a leaf, as 0 is."""
    return jax.tree.map(function, axes, *trees, is_leaf=lambda axis: axis is None)


# --- Gradients, computed in micro-batches if the settings ask for it --------------------------

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
