"""Logical shards: how one update is split into shards that differ only in their data.

Each shard has its environments, rows and random numbers; what the shards learn is averaged. The
number of shards decides what is computed; the number of devices that carry them does not.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from flatout.algorithms.parallel.packing import Packing

DEVICES, SHARDS = "devices", "shards"
"""The axes of a sharded program: devices, and the shards that each of them carries."""

Tree = TypeVar("Tree")
Pure = TypeVar("Pure", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Shards:
    """How the shards of an update exchange values. A single shard exchanges nothing.

    Attributes:
        count: S, how many shards there are.
        every: gradients are averaged at each update (1), or parameters after every K updates
            (local SGD; Stich, 2019), and always before anything leaves the device.
        ordered: averages are sums in the shards' order, the same bits on any number of devices;
            else whatever order is fastest.
        mapped: devices have an axis, too; else the compiler divides the axis of shards.
        waits: what every sum takes along, or None (see `after`).
    """

    count: int = 1
    every: int = 1
    ordered: bool = False
    mapped: bool = True
    waits: jax.Array | None = None

    def after(self, done: jax.Array | None) -> Shards:
        """Shards whose sums wait for a number, as what depends on it.

        What crosses the devices beside a loop in which something crosses them, too, may do so at
        the same time, and XLA's CPU client (0.10) takes the one for the other, and crashes.
        """
        return dataclasses.replace(self, waits=done)

    @property
    def each_step(self) -> Shards:
        """The shards of a single update: none where only parameters are averaged."""
        return self if self.every == 1 else UNSHARDED

    def one_by_one(self, function: Pure) -> Pure:
        """A function of one shard's arrays that needs no other shard.

        With ordered sums it is computed for one shard after another, by the same program whatever
        their number: computed side by side, XLA rounds some products and sums otherwise for 8
        shards than for 1. It must not close over traced arrays.
        """
        if self.count == 1 or not self.ordered or not self.mapped:
            return function
        alone = jax.custom_batching.custom_vmap(function)

        @alone.def_vmap
        def in_turn(size: int, mapped: Any, *given: Any) -> Any:
            def compute(number: Any) -> Any:
                def pick(x: jax.Array, batched: bool) -> jax.Array:
                    return jax.lax.dynamic_index_in_dim(x, number, 0, False) if batched else x

                # Barriers that the shard's number passes, too: without it XLA would see that the
                # loop of a single shard computes the same each time, and take it out of the loop.
                part = jax.tree.map(pick, given, tuple(mapped))
                number, part = jax.lax.optimization_barrier((number, part))
                return jax.lax.optimization_barrier((number, function(*part)))[1]

            def body(number: jax.Array, results: Any) -> Any:
                def put(all: jax.Array, one: jax.Array) -> jax.Array:
                    return jax.lax.dynamic_update_index_in_dim(all, one, number, 0)

                return jax.tree.map(put, results, compute(number))

            shapes = jax.eval_shape(compute, 0)
            results = jax.tree.map(lambda one: jnp.zeros((size, *one.shape), one.dtype), shapes)
            # Behind a barrier as well: XLA unrolls a loop that runs once.
            count = jax.lax.optimization_barrier(jnp.int32(size))
            results = jax.lax.fori_loop(0, count, body, results)
            return results, jax.tree.map(lambda _: True, results)

        return alone  # type: ignore[return-value]

    def as_one_batch(self, compute: Pure, merged: Pure | None = None) -> Pure:
        """A mean over a shard's rows; of shards on one device over all of their rows at once.

        Side by side each shard would have a gradient, only for their average; as one batch they
        share the products, and one device takes as long for S shards as for one. So a shard gets
        its device's mean. Shards stay separate where sums are ordered or parameters differ.

        Args:
            compute: ``(params, batch, *shared) -> (means over rows, arrays with a row each)``.
            merged: the same for a device's rows, where the function needs the other shards.
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

            def beside(x: jax.Array, batched: bool) -> jax.Array:
                x = x if batched else jnp.broadcast_to(x, (size, *x.shape))
                return x.reshape(-1, *x.shape[2:])

            means, each = whole(params, jax.tree.map(beside, batch, rows), *shared)
            each = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), each)
            shared_means = jax.tree.map(lambda _: False, means)
            return (means, each), (shared_means, jax.tree.map(lambda _: True, each))

        return function  # type: ignore[return-value]

    def sync(self, tree: Tree, updates: jax.Array) -> Tree:
        """Parameters after so many updates: averaged where it is time to."""
        if self.every == 1:
            return tree
        return jax.lax.cond(updates % self.every == 0, self.sync_now, lambda same: same, tree)

    def sync_now(self, tree: Tree) -> Tree:
        """Every float's average over the shards."""
        if self.every == 1:
            return tree
        floats, rest = eqx.partition(tree, lambda leaf: jnp.issubdtype(leaf.dtype, jnp.inexact))
        return eqx.combine(self.mean(floats), rest)

    def sum(self, tree: Tree) -> Tree:
        """Every leaf's sum over the shards: of a number's or an array's, or of several floats'.

        Several cross the devices as one vector: a call for each costs more than copying them.
        """
        if self.count == 1:
            return tree
        if self.waits is not None:
            return dataclasses.replace(self, waits=None).sum((tree, self.waits))[0]
        if self.ordered or not self.mapped:
            return self._whole(tree)
        tree = jax.tree.map(lambda leaf: jax.lax.psum(leaf, SHARDS), tree)
        return tree if jax.lax.axis_size(DEVICES) == 1 else self._whole(tree)

    def _whole(self, tree: Tree) -> Tree:
        if len(jax.tree.leaves(tree)) < 2 or not self.mapped:
            return jax.tree.map(self._total, tree)
        packing = Packing(tree)
        return packing.unpack(self._total(packing.pack(tree)))

    def _total(self, x: jax.Array) -> jax.Array:
        if self.ordered:
            # What all do with it is fused with nothing that depends on how many devices there are.
            return jax.lax.optimization_barrier(functools.reduce(jnp.add, self.gather(x[None])))
        return jax.lax.psum(x, DEVICES if self.mapped else SHARDS)

    def mean(self, tree: Tree) -> Tree:
        """Every leaf's average over the shards."""
        if self.count == 1:
            return tree
        return jax.tree.map(lambda leaf: leaf / self.count, self.sum(tree))

    def gather(self, x: jax.Array) -> jax.Array:
        """All shards' arrays ``[n, ...]`` one after another, ``[S * n, ...]``."""
        if self.count == 1:
            return x
        here = jax.lax.all_gather(x, SHARDS, axis=0, tiled=True)
        return jax.lax.all_gather(here, DEVICES, axis=0, tiled=True) if self.mapped else here

    def local(self, x: jax.Array) -> jax.Array:
        """This shard's piece ``[n, ...]`` of ``[S * n, ...]``, the inverse of `gather`."""
        if self.count == 1:
            return x
        size = x.shape[0] // self.count
        return jax.lax.dynamic_slice_in_dim(x, self.index() * size, size)

    def index(self) -> jax.Array:
        """This shard's number, int32."""
        if self.count == 1:
            return jnp.zeros((), jnp.int32)
        if not self.mapped:
            return jax.lax.axis_index(SHARDS)
        here = jax.lax.axis_size(SHARDS)
        return jax.lax.axis_index(DEVICES) * here + jax.lax.axis_index(SHARDS)

    def key(self, key: jax.Array) -> jax.Array:
        """This shard's random stream."""
        return key if self.count == 1 else jax.random.fold_in(key, self.index())


UNSHARDED = Shards()
"""No shards: the whole batch at once."""


def over_devices(tree: Tree) -> Tree:
    """Every leaf's average over the devices, where a device's shards are one batch."""
    return jax.lax.pmean(tree, DEVICES)


def by_axis(function: Callable[..., Any], axes: Any, *trees: Any) -> Any:
    """`jax.tree.map` over a pytree prefix of axes, among which None is a value like 0."""
    return jax.tree.map(function, axes, *trees, is_leaf=lambda axis: axis is None)
