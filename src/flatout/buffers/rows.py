"""Rows of replayed experience by their numbers: of a ring, of a shard, of several shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from flatout.buffers.ring import Geometry, Ring
from flatout.types import RowSource

STORED = ("frames", "actions", "rewards", "terminated", "truncated", "age")
"""What is kept of a row beside its final observations."""


class RingRows:
    """A ring's rows by number."""

    def __init__(self, geometry: Geometry, ring: Ring, head: int) -> None:
        self._geometry, self._ring, self._head = geometry, ring, head

    @property
    def stored(self) -> tuple[int, int]:
        older = self._geometry.spec.stack - 1
        return max(self._head - self._geometry.rows - older, 0), self._head

    def read(self, first: int, end: int) -> dict[str, np.ndarray]:
        geometry = self._geometry
        length, num_envs = geometry.length, geometry.num_envs
        start, rows = first % length, end - first
        until = min(start + rows, length)  # the ring may go on at its beginning
        pieces = [(start, until - start), (0, rows - (until - start))]
        block: dict[str, np.ndarray] = {}
        for name in (*STORED, "slot"):
            array = getattr(self._ring, name)
            read = [on_host(array, at * num_envs, size * num_envs) for at, size in pieces if size]
            block[name] = np.concatenate(read).reshape(rows, num_envs, *array.shape[1:])
        numbers = block.pop("slot")[block["truncated"]]
        finals = self._ring.finals
        block["finals"] = on_host(finals, 0, len(finals))[numbers % len(finals)]
        return block


def on_host(array: Any, start: int, size: int) -> np.ndarray:
    """Some entries of an array in host memory, without moving all of it there."""
    if hasattr(array, "rows"):  # one shard's of several
        return array.rows(start, size)
    if isinstance(array, np.ndarray) or next(iter(array.devices())).platform == "cpu":
        return np.asarray(array)[start : start + size]
    return np.asarray(jax.lax.dynamic_slice_in_dim(array, start, size))


def shard_of(device_state: Any, number: int) -> Any:
    """One shard's arrays of all shards' in device memory, without moving them."""
    return jax.tree.map(lambda leaf: ShardOf(leaf, number), device_state)


class ShardOf:
    """One shard's array ``[n, ...]`` of a sharded ``[S, n, ...]``, read piece by piece."""

    def __init__(self, array: jax.Array, number: int) -> None:
        for shard in array.addressable_shards:
            first, end, _ = shard.index[0].indices(array.shape[0])
            if first <= number < end:
                self._data, self._at = shard.data, number - first
        self.shape, self.dtype = array.shape[1:], array.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._data[self._at], dtype)

    def rows(self, start: int, size: int) -> np.ndarray:
        """Some of its entries, in host memory."""
        if next(iter(self._data.devices())).platform == "cpu":
            return np.asarray(self._data)[self._at, start : start + size]
        corner = (self._at, start, *(0 for _ in self.shape[1:]))
        piece = jax.lax.dynamic_slice(self._data, corner, (1, size, *self.shape[1:]))
        return np.asarray(piece)[0]


class JoinedRows:
    """Several shards' rows as one store's: environments side by side."""

    def __init__(self, sources: Sequence[RowSource]) -> None:
        self._sources = list(sources)

    @property
    def stored(self) -> tuple[int, int]:
        return self._sources[0].stored

    def read(self, first: int, end: int) -> dict[str, np.ndarray]:
        shards = [source.read(first, end) for source in self._sources]
        joined = {
            name: np.concatenate([shard[name] for shard in shards], 1)
            for name in shards[0]
            if name != "finals"
        }
        num_envs = shards[0]["truncated"].shape[1]
        places = [
            np.argwhere(shard["truncated"]) + np.array([0, number * num_envs])
            for number, shard in enumerate(shards)
        ]
        row, env = np.concatenate(places).T
        finals = np.concatenate([shard["finals"] for shard in shards])
        return joined | {"finals": finals[np.lexsort((env, row))]}


class ShardRows:
    """The rows of some environments of a store."""

    def __init__(self, rows: RowSource, first: int, num_envs: int) -> None:
        self._rows, self._columns = rows, slice(first, first + num_envs)

    @property
    def stored(self) -> tuple[int, int]:
        return self._rows.stored

    def read(self, first: int, end: int) -> dict[str, np.ndarray]:
        read = self._rows.read(first, end)
        env = np.argwhere(read["truncated"])[:, 1]
        mine = (env >= self._columns.start) & (env < self._columns.stop)
        mine_only = {
            name: array[:, self._columns] for name, array in read.items() if name != "finals"
        }
        return mine_only | {"finals": read["finals"][mine]}
