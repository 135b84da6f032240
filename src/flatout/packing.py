"""Layouts that pack several arrays into one. The learner, policies and samplers use them.

One array needs one transfer instead of many, and one fused loop of the optimiser."""

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
        shapes: a pytree of arrays or `jax.ShapeDtypeStruct`. Their types must be floats of at most
            32 bits, because a cast to float32 and back does not change these.

    Raises:
        UsageError: a leaf is not such a float.
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
        """Return the leaves one after another, float32 ``[P]``; `xp=numpy` packs on the host."""
        leaves = [xp.asarray(leaf, np.float32).reshape(-1) for leaf in jax.tree.leaves(tree)]
        return xp.concatenate(leaves) if leaves else xp.zeros((0,), np.float32)

    def unpack(self, vector: jax.Array) -> Any:
        """Return the pytree that was packed in ``vector [P]``."""
        leaves, start = [], 0
        for leaf, size in zip(self._leaves, self.sizes, strict=True):
            part = jax.lax.slice(vector, (start,), (start + size,))
            leaves.append(part.reshape(leaf.shape).astype(leaf.dtype))
            start += size
        return jax.tree.unflatten(self._tree, leaves)


class OutputLayout:
    """The layout of `act`'s outputs in one row of 32-bit words, so that a step is one transfer.

    Outputs are sorted by name: JAX sorts a dictionary that a compiled function returns, but not one
    within a program, so their order could differ.

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
        """Pack all outputs into one uint32 vector ``[words]``, inside a compiled program."""
        words = [
            jax.lax.bitcast_convert_type(value, jnp.uint32).reshape(-1)
            for _, value in sorted(outputs.items())
        ]
        return jnp.concatenate(words)

    def read(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return views ``[T, N, ...]`` of rows ``[T, words]`` by name."""
        return {
            name: rows[:, start:stop].view(dtype).reshape(len(rows), *shape)
            for name, (start, stop, shape, dtype) in self.fields.items()
        }

    def unpack(self, rows: jax.Array) -> dict[str, jax.Array]:
        """Return the same as `read`, inside a compiled program."""
        return {
            name: jax.lax.bitcast_convert_type(rows[:, start:stop], dtype).reshape(-1, *shape)
            for name, (start, stop, shape, dtype) in self.fields.items()
        }

    def action(self, row: np.ndarray) -> np.ndarray:
        """Return the actions ``[N, ...]`` in one row ``[words]``."""
        start, stop, shape, dtype = self.fields["action"]
        return row[start:stop].view(dtype).reshape(shape)


class PackedParams:
    """The layout of a pytree in few arrays: small leaves in one vector, each large leaf by itself.

    Few arrays make calls cheap and the optimiser one fused loop. Packing large leaves would only
    add copies.

    Args:
        shapes: as for `Packing`.
        large: a leaf with at least this many elements is not packed.
    """

    def __init__(self, shapes: Any, large: int = 1 << 14) -> None:
        leaves, self._tree = jax.tree.flatten(shapes)
        sizes = [math.prod(leaf.shape) for leaf in leaves]
        self.large = [i for i, size in enumerate(sizes) if size >= large]
        self._small = [i for i, size in enumerate(sizes) if size < large]
        self._packing = Packing([leaves[i] for i in self._small])
        Packing([leaves[i] for i in self.large])  # refuses leaves that are not floats
        vector = jax.ShapeDtypeStruct((self._packing.size,), jnp.float32)
        alone = (jax.ShapeDtypeStruct(leaves[i].shape, leaves[i].dtype) for i in self.large)
        self.shapes = (vector, *alone)
        self.count = sum(sizes)

    def pack(self, tree: Any, xp: Any = jnp) -> tuple[Any, ...]:
        """Return the vector of small leaves, then the large ones; `xp=numpy` packs on the host."""
        leaves = jax.tree.leaves(tree)
        return (self.pack_small(leaves, xp), *(xp.asarray(leaves[i]) for i in self.large))

    def pack_small(self, leaves: list[Any], xp: Any = jnp) -> Any:
        """Return the vector of the small ones among all leaves."""
        return self._packing.pack([leaves[i] for i in self._small], xp)

    def unpack(self, arrays: Any) -> Any:
        """Return the pytree that was packed in `arrays`."""
        leaves: list[Any] = [None] * (len(self._small) + len(self.large))
        for i, leaf in zip(self._small, self._packing.unpack(arrays[0]), strict=True):
            leaves[i] = leaf
        for i, leaf in zip(self.large, arrays[1:], strict=True):
            leaves[i] = leaf
        return jax.tree.unflatten(self._tree, leaves)
