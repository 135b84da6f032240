"""The rows of a replay ring by number. Checkpoints read them without a second copy of the ring."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from flatout import tree
from flatout.engine.replay.ring import STEP, Ring, RingLayout
from flatout.storage.segments import FINALS

STORED = ("frames", *STEP, "age")
"""The arrays of a ring that are saved for each row, in addition to final observations."""


class RingRows:
    """A `RowSource` of a ring's rows. Each row has the environments of all shards, in order.

    Args:
        layout: the sizes of the ring, or of each shard's ring.
        ring: the arrays, NumPy or JAX, with a leading axis of shards if there are shards.
        rows_written: the number of rows ever stored.
    """

    def __init__(self, layout: RingLayout, ring: Ring, rows_written: int) -> None:
        self._layout, self._ring, self._head = layout, ring, rows_written
        self._shards = ring.rewards.ndim - 1  # the number of axes of shards: 0 or 1

    @property
    def stored(self) -> tuple[int, int]:
        older = self._layout.depth - 1
        return max(self._head - self._layout.rows - older, 0), self._head

    def row(self, name: str, number: int) -> Any:
        """Return one row ``[N, ...]`` of the field `name` of `Ring`."""
        arrays = getattr(self._ring, name)
        return tree.map(lambda a: self._rows(a, number % self._layout.length, 1)[0], arrays)

    def read(self, first: int, end: int) -> dict[str, np.ndarray]:
        start, rows = first % self._layout.length, end - first
        until = min(start + rows, self._layout.length)  # the rows may wrap around the ring's end
        pieces = [(start, until - start), (0, rows - (until - start))]
        block = {
            tree.joined(name, path): np.concatenate(
                [self._rows(array, at, size) for at, size in pieces if size]
            )
            for name in (*STORED, "final_id")
            for path, array in tree.items(getattr(self._ring, name))
        }
        numbers = block.pop("final_id")[block["truncated"]]

        def finals(array: Any) -> np.ndarray:
            found = on_host(array, 0, array.shape[self._shards])
            found = found[0] if self._shards else found
            return found[numbers % len(found)]

        return block | tree.named(FINALS, tree.map(finals, self._ring.finals))

    def _rows(self, array: Any, start: int, rows: int) -> np.ndarray:
        """Return rows ``[rows, N, ...]`` of an array from position `start` on; they must not wrap
        around."""
        num_envs = self._layout.num_envs
        array = on_host(array, start * num_envs, rows * num_envs, self._shards)
        if not self._shards:
            return array.reshape(rows, num_envs, *array.shape[1:])
        return side_by_side(array.reshape(len(array), rows, num_envs, *array.shape[2:]))


def side_by_side(array: np.ndarray) -> np.ndarray:
    """Join the shards' arrays ``[S, rows, n, ...]`` to one array ``[rows, S * n, ...]``."""
    shards, rows, num_envs = array.shape[:3]
    return np.moveaxis(array, 0, 1).reshape(rows, shards * num_envs, *array.shape[3:])


def by_shard(array: np.ndarray, shards: int) -> np.ndarray:
    """Undo `side_by_side`. The result is always a copy: a device may still read it while the
    next trajectory overwrites `array`."""
    rows, num_envs = array.shape[:2]
    parts = array.reshape(rows, shards, num_envs // shards, *array.shape[2:])
    return np.moveaxis(parts, 1, 0).copy()


def on_host(array: Any, start: int, size: int, axis: int = 0) -> np.ndarray:
    """Return `size` entries of an array from `start` on, in host memory: a view of a NumPy array,
    else a copy.

    Args:
        axis: the axis of the entries: 0, or 1 if axis 0 is shards.
    """
    where = (slice(None),) * axis + (slice(start, start + size),)
    if isinstance(array, np.ndarray):
        return array[where]
    pieces = sorted(array.addressable_shards, key=lambda piece: piece.index[0].start or 0)
    read = [
        np.asarray(piece.data)[where]
        if piece.device.platform == "cpu"
        else np.asarray(jax.lax.dynamic_slice_in_dim(piece.data, start, size, axis))
        for piece in pieces
    ]
    return np.concatenate(read) if axis else read[0]
