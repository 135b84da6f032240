"""Logical shards: how one update is split into parts that differ only in their data.

A part sees its own environments, rows and random numbers, and what it learns is averaged with the
others'. How many parts there are decides what is computed; how many devices carry them does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from flatout.packing import Packing

DEVICES, PARTS = "devices", "parts"
"""The axes of a sharded program: devices, and the parts that each of them carries."""

Tree = TypeVar("Tree")
Pure = TypeVar("Pure", bound=Callable[..., Any])


@dataclass(frozen=True)
class Shards:
    """What a part of an update knows of the others. A single one calls nothing.

    Attributes:
        count: S, how many parts there are.
        every: gradients are averaged at each update (1), or parameters after every K updates
            (local SGD; Stich, 2019), and always before anything leaves the device.
        ordered: averages are sums in the parts' order, the same bits on any number of devices;
            else whatever order is fastest.
        mapped: devices have an axis of their own; else the compiler divides the one of parts.
    """

    count: int = 1
    every: int = 1
    ordered: bool = False
    mapped: bool = True

    @property
    def each_step(self) -> Shards:
        """What a single update knows of the others: nothing where only parameters are averaged."""
        return self if self.every == 1 else ONE

    def apart(self, function: Pure) -> Pure:
        """A function of a part's own arrays that asks nothing of the others.

        With ordered sums it is computed for one part after another, by the same program whatever
        their number: computed side by side, XLA rounds some products and sums otherwise for 8
        parts than for 1. It must not close over traced arrays.
        """
        if self.count == 1 or not self.ordered or not self.mapped:
            return function

        def alone(*own: Any) -> Any:  # barriers, or XLA fuses it with what surrounds it
            return jax.lax.optimization_barrier(function(*jax.lax.optimization_barrier(own)))

        return jax.custom_batching.sequential_vmap(alone)  # type: ignore[return-value]

    def agree(self, tree: Tree, updates: jax.Array) -> Tree:
        """Parameters after so many updates: averaged where it is time to."""
        if self.every == 1:
            return tree
        return jax.lax.cond(updates % self.every == 0, self.settle, lambda same: same, tree)

    def settle(self, tree: Tree) -> Tree:
        """What the parts have of their own becomes one: the average of every float."""
        if self.every == 1:
            return tree
        floats, rest = eqx.partition(tree, lambda leaf: jnp.issubdtype(leaf.dtype, jnp.inexact))
        return eqx.combine(self.mean(floats), rest)

    def sum(self, tree: Tree) -> Tree:
        """Every leaf's sum over the parts: of a number's or an array's, or of several floats'.

        Several cross the devices as one vector: a call for each costs more than copying them
        (and so many at a time inside of a loop crash XLA's CPU client, 0.10).
        """
        if self.count == 1:
            return tree
        if len(jax.tree.leaves(tree)) < 2 or not self.mapped:
            return jax.tree.map(self._total, tree)
        packing = Packing(tree)
        return packing.unpack(self._total(packing.pack(tree)))

    def _total(self, x: jax.Array) -> jax.Array:
        if self.ordered:
            return functools.reduce(jnp.add, self.gather(x[None]))
        return jax.lax.psum(x, (PARTS, DEVICES) if self.mapped else PARTS)

    def mean(self, tree: Tree) -> Tree:
        """Every leaf's average over the parts."""
        if self.count == 1:
            return tree
        return jax.tree.map(lambda leaf: leaf / self.count, self.sum(tree))

    def gather(self, x: jax.Array) -> jax.Array:
        """All parts' arrays ``[n, ...]`` one after another, ``[S * n, ...]``."""
        if self.count == 1:
            return x
        here = jax.lax.all_gather(x, PARTS, axis=0, tiled=True)
        return jax.lax.all_gather(here, DEVICES, axis=0, tiled=True) if self.mapped else here

    def own(self, x: jax.Array) -> jax.Array:
        """This part's piece ``[n, ...]`` of ``[S * n, ...]``; what `gather` is the inverse of."""
        if self.count == 1:
            return x
        size = x.shape[0] // self.count
        return jax.lax.dynamic_slice_in_dim(x, self.index() * size, size)

    def index(self) -> jax.Array:
        """This part's number, int32."""
        if self.count == 1:
            return jnp.zeros((), jnp.int32)
        if not self.mapped:
            return jax.lax.axis_index(PARTS)
        here = jax.lax.axis_size(PARTS)
        return jax.lax.axis_index(DEVICES) * here + jax.lax.axis_index(PARTS)

    def key(self, key: jax.Array) -> jax.Array:
        """This part's random stream."""
        return key if self.count == 1 else jax.random.fold_in(key, self.index())


ONE = Shards()
"""No parts: the whole batch at once."""


def by_axis(function: Callable[..., Any], axes: Any, *trees: Any) -> Any:
    """`jax.tree.map` over a pytree prefix of axes, among which None is a value like 0."""
    return jax.tree.map(function, axes, *trees, is_leaf=lambda axis: axis is None)
