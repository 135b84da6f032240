"""The devices and shards of a learner. The learner compiles its programs over them here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from flatout.algorithms.shards import DEVICES, SHARDS, by_axis
from flatout.types import Device

WHOLE = jax.sharding.PartitionSpec()
SPLIT = jax.sharding.PartitionSpec(DEVICES)
LARGE = 1 << 14
"""Minimum number of elements of an array that is divided over the devices."""


def divided_axis(shape: tuple[int, ...], count: int) -> int | None:
    """Return the axis along which ``params=sharded`` divides an array over `count` devices.

    It is the longest axis whose length is a multiple of `count`. None if the array is small or
    has no such axis: then each device holds the whole array.
    """
    divisible = [axis for axis, size in enumerate(shape) if size % count == 0]
    if not divisible or math.prod(shape) < LARGE:
        return None
    return max(divisible, key=lambda axis: shape[axis])


class Mesh:
    """The learning devices with S shards, S / D on each of D devices.

    Args:
        devices: the learning devices.
        shards: S. A single shard has one device, and arrays then have no axis of shards.
        divided: also divide large arrays of the learning state over the devices. They are gathered
            only while they are needed.

    Attributes:
        whole: the sharding of replicated arrays.
        split: the sharding of arrays whose first axis is the shards.
    """

    def __init__(self, devices: Sequence[Device], shards: int, divided: bool = False) -> None:
        self.devices = tuple(devices)
        self.shards = shards
        self._divided = divided and shards > 1
        if shards == 1:
            self.whole: Any = jax.sharding.SingleDeviceSharding(self.devices[0])
            self.split: Any = self.whole
            return
        self._mesh = jax.sharding.Mesh(np.array(self.devices), (DEVICES,))
        self.whole = jax.sharding.NamedSharding(self._mesh, WHOLE)
        self.split = jax.sharding.NamedSharding(self._mesh, SPLIT)

    @property
    def first(self) -> Device:
        """The first device."""
        return self.devices[0]

    def state(self, shapes: Sequence[Any]) -> Any:
        """Return the shardings of the learning state's arrays: one for all, or a list."""
        if not self._divided:
            return self.whole
        return [self._sharding(shape.shape) for shape in shapes]

    def _sharding(self, shape: tuple[int, ...]) -> Any:
        """Return the sharding of one array of a divided learning state."""
        longest = divided_axis(shape, len(self.devices))
        if longest is None:
            return self.whole
        spec = jax.sharding.PartitionSpec(*[None] * longest, DEVICES)
        return jax.sharding.NamedSharding(self._mesh, spec)

    def program(
        self, function: Callable[..., Any], axes: Sequence[Any], out: Sequence[Any],
        state: Any = None, donate: tuple[int, ...] = (0, 1),
    ) -> Any:  # fmt: skip
        """Map a function of one shard over all shards. Return a jitted function.

        Args:
            function: a function of one shard's arrays.
            axes: for each argument 0 if shards have different arrays, None if they share one; or a
                pytree prefix of these.
            out: the same for each result.
            state: the shardings of the first argument and the first result, from `state`.
            donate: indices of arguments whose memory the program may reuse for its results.
        """
        if self.shards == 1:
            return _jit(function, self.whole, self.whole, donate)
        takes = _replace_axes(axes, self.split, self.whole)
        gives = _replace_axes(out, self.split, self.whole)
        if self._divided and state is not None:
            takes, gives = (state, *takes[1:]), (state, *gives[1:])
        each = self.shards if self._divided else self.shards // len(self.devices)
        program = jax.vmap(function, tuple(axes), tuple(out), axis_name=SHARDS, axis_size=each)
        if not self._divided:  # with a divided state, the compiler divides the shards
            program = jax.shard_map(
                program, mesh=self._mesh, in_specs=_replace_axes(axes, SPLIT, WHOLE),
                out_specs=_replace_axes(out, SPLIT, WHOLE), check_vma=False,
            )  # fmt: skip
        return _jit(program, takes, gives, donate)

    def put(self, tree: Any, axes: Any) -> Any:
        """Copy arrays to the devices as `program` expects them, with the same `axes`."""
        shardings = _replace_axes(axes, self.split, self.whole)
        return jax.tree.map(lambda where, array: jax.device_put(array, where), shardings, tree)


def _jit(program: Any, takes: Any, gives: Any, donate: tuple[int, ...]) -> Any:
    return jax.jit(program, donate_argnums=donate, in_shardings=takes, out_shardings=gives)


def _replace_axes(axes: Any, split: Any, shared: Any) -> Any:
    """Return `axes` with each 0 replaced by `split` and each None by `shared`."""
    axes = tuple(axes) if isinstance(axes, list) else axes
    return by_axis(lambda axis: shared if axis is None else split, axes)
