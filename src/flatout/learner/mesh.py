"""The devices that carry a learner's shards, and a program over all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from flatout.algorithms.parallel.shards import DEVICES, SHARDS, by_axis
from flatout.types import Device

WHOLE = jax.sharding.PartitionSpec()
SPLIT = jax.sharding.PartitionSpec(DEVICES)
LARGE = 1 << 14
"""Elements from which an array of a divided learning state is divided."""


class Mesh:
    """One or several devices with S shards on them, as many on each.

    Args:
        devices: the learning devices.
        shards: S; with one shard and one device arrays have no axis of shards.
        divided: large arrays of the learning state are divided over the devices, too, and are
            brought together only while they are needed.

    Attributes:
        whole: the sharding of what every device has all of.
        split: that of arrays whose first axis is the shards.
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
        """The device that stands for all."""
        return self.devices[0]

    def state(self, shapes: Sequence[Any]) -> Any:
        """Where the arrays of a learning state lie: a sharding, or one for each."""
        if not self._divided:
            return self.whole
        return [self._place(shape.shape) for shape in shapes]

    def _place(self, shape: tuple[int, ...]) -> Any:
        """Divided along the longest axis that as many devices divide, unless it is small."""
        count = len(self.devices)
        able = [axis for axis, size in enumerate(shape) if size % count == 0]
        if not able or math.prod(shape) < LARGE:
            return self.whole
        longest = max(able, key=lambda axis: shape[axis])
        spec = jax.sharding.PartitionSpec(*[None] * longest, DEVICES)
        return jax.sharding.NamedSharding(self._mesh, spec)

    def program(
        self, function: Callable[..., Any], axes: Sequence[Any], out: Sequence[Any],
        state: Any = None,
    ) -> Any:  # fmt: skip
        """`function` of one shard as a function of all, compiled when it is lowered.

        Args:
            function: of arrays, for one shard.
            axes: for each argument 0 where each shard has its array, None where all have the same;
                or a pytree prefix of these.
            out: the same for each result.
            state: shardings of the first argument and the first result, from `state`.
        """
        if self.shards == 1:
            return _compiled(function, self.whole, self.whole)
        takes = _chosen(axes, self.split, self.whole)
        gives = _chosen(out, self.split, self.whole)
        if self._divided and state is not None:
            takes, gives = (state, *takes[1:]), (state, *gives[1:])
        if self._divided:  # the compiler divides the axis of shards
            program = jax.vmap(
                function, tuple(axes), tuple(out), axis_name=SHARDS, axis_size=self.shards
            )  # fmt: skip
            return _compiled(program, takes, gives)
        here = self.shards // len(self.devices)
        on_device = jax.vmap(
            function, tuple(axes), tuple(out), axis_name=SHARDS, axis_size=here
        )  # fmt: skip
        program = jax.shard_map(
            on_device, mesh=self._mesh, in_specs=_chosen(axes, SPLIT, WHOLE),
            out_specs=_chosen(out, SPLIT, WHOLE), check_vma=False,
        )  # fmt: skip
        return _compiled(program, takes, gives)

    def put(self, tree: Any, axes: Any) -> Any:
        """Arrays where `program` expects them; `axes` as there."""
        chosen = _chosen(axes, self.split, self.whole)
        return jax.tree.map(lambda where, array: jax.device_put(array, where), chosen, tree)


def _compiled(program: Any, takes: Any, gives: Any) -> Any:
    return jax.jit(program, donate_argnums=(0, 1), in_shardings=takes, out_shardings=gives)


def _chosen(axes: Any, split: Any, shared: Any) -> Any:
    """A pytree prefix with one of two values for each axis."""
    axes = tuple(axes) if isinstance(axes, list) else axes
    return by_axis(lambda axis: shared if axis is None else split, axes)
