"""Several arrays as one: one transfer instead of many, one fused optimiser step."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flatout.errors import UsageError


class Packing:
    """The layout of one pytree's leaves in a vector ``[P]``.

    Args:
        shapes: a pytree of arrays or `jax.ShapeDtypeStruct`, of floats of at most 32 bits (which
            survive the way through float32 unchanged).

    Raises:
        UsageError: a leaf that is not such a float.
    """

    def __init__(self, shapes: Any) -> None:
        self._leaves, self._tree = jax.tree.flatten(shapes)
        for leaf in self._leaves:
            if not jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.dtype.itemsize > 4:
                raise UsageError(
                    f"the network holds an array of {leaf.dtype}; parameters must be floats of at "
                    "most 32 bits (keep other arrays in static fields)."
                )
        self.sizes = [math.prod(leaf.shape) for leaf in self._leaves]
        self.size = sum(self.sizes)

    def pack(self, tree: Any, xp: Any = jnp) -> Any:
        """The leaves one after another, float32 ``[P]``; with `numpy` without a device."""
        leaves = [xp.asarray(leaf, np.float32).reshape(-1) for leaf in jax.tree.leaves(tree)]
        return xp.concatenate(leaves) if leaves else xp.zeros((0,), np.float32)

    def unpack(self, vector: jax.Array) -> Any:
        """The pytree again, from ``vector [P]``."""
        leaves, start = [], 0
        for leaf, size in zip(self._leaves, self.sizes, strict=True):
            part = jax.lax.slice(vector, (start,), (start + size,))
            leaves.append(part.reshape(leaf.shape).astype(leaf.dtype))
            start += size
        return jax.tree.unflatten(self._tree, leaves)


class OutputLayout:
    """How `act`'s outputs lie in one row of 32-bit words, so that a step is one transfer.

    In the order of their names: JAX sorts a dictionary that it returns, and none within a program.

    Args:
        outputs: name -> shape and dtype of ``[N, ...]``, all of 32 bits.
    """

    def __init__(self, outputs: dict[str, jax.ShapeDtypeStruct]) -> None:
        self.fields: dict[str, tuple[int, int, tuple[int, ...], np.dtype[Any]]] = {}
        start = 0
        for name, spec in sorted(outputs.items()):
            stop = start + math.prod(spec.shape)
            self.fields[name] = (start, stop, spec.shape, np.dtype(spec.dtype))
            start = stop
        self.words = start

    @staticmethod
    def pack(outputs: dict[str, jax.Array]) -> jax.Array:
        """Inside the compiled program: all outputs as one ``[words]`` uint32 vector."""
        words = [
            jax.lax.bitcast_convert_type(value, jnp.uint32).reshape(-1)
            for _, value in sorted(outputs.items())
        ]
        return jnp.concatenate(words)

    def read(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Rows ``[T, words]`` as views ``[T, N, ...]`` by name."""
        return {
            name: rows[:, start:stop].view(dtype).reshape(len(rows), *shape)
            for name, (start, stop, shape, dtype) in self.fields.items()
        }

    def unpack(self, rows: jax.Array) -> dict[str, jax.Array]:
        """`read` inside a compiled program."""
        return {
            name: jax.lax.bitcast_convert_type(rows[:, start:stop], dtype).reshape(-1, *shape)
            for name, (start, stop, shape, dtype) in self.fields.items()
        }

    def action(self, row: np.ndarray) -> np.ndarray:
        """The actions ``[N, ...]`` in one row ``[words]``."""
        start, stop, shape, dtype = self.fields["action"]
        return row[start:stop].view(dtype).reshape(shape)


class Bundle:
    """A pytree as few arrays: its small leaves in one vector, each large one by itself.

    Few arrays make cheap calls and one fused optimiser loop; large ones would only be copied.

    Args:
        shapes: as for `Packing`.
        large: elements from which a leaf stands alone.
    """

    def __init__(self, shapes: Any, large: int = 1 << 14) -> None:
        leaves, self._tree = jax.tree.flatten(shapes)
        sizes = [math.prod(leaf.shape) for leaf in leaves]
        self.large = [i for i, size in enumerate(sizes) if size >= large]
        self._small = [i for i, size in enumerate(sizes) if size < large]
        self._packing = Packing([leaves[i] for i in self._small])
        Packing([leaves[i] for i in self.large])  # refuses what is no float
        vector = jax.ShapeDtypeStruct((self._packing.size,), jnp.float32)
        alone = (jax.ShapeDtypeStruct(leaves[i].shape, leaves[i].dtype) for i in self.large)
        self.shapes = (vector, *alone)
        self.count = sum(sizes)

    def pack(self, tree: Any, xp: Any = jnp) -> tuple[Any, ...]:
        """The vector of small leaves, then the large ones; with `numpy` without a device."""
        leaves = jax.tree.leaves(tree)
        vector = self._packing.pack([leaves[i] for i in self._small], xp)
        return (vector, *(xp.asarray(leaves[i]) for i in self.large))

    def unpack(self, arrays: Any) -> Any:
        """The pytree again."""
        leaves: list[Any] = [None] * (len(self._small) + len(self.large))
        for i, leaf in zip(self._small, self._packing.unpack(arrays[0]), strict=True):
            leaves[i] = leaf
        for i, leaf in zip(self.large, arrays[1:], strict=True):
            leaves[i] = leaf
        return jax.tree.unflatten(self._tree, leaves)
