"""Rows of replayed experience by their numbers, read where they lie."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from flatout.buffers.ring import Geometry, Ring

STORED = ("frames", "actions", "rewards", "terminated", "truncated", "age")
"""What is kept of a row beside its final observations."""


class RingRows:
    """A ring's rows by number, environments of all shards side by side.

    Args:
        geometry: of the ring, or of each shard's.
        ring: its arrays; those of S shards have a leading axis.
        head: rows ever ingested.
    """

    def __init__(self, geometry: Geometry, ring: Ring, head: int) -> None:
        self._geometry, self._ring, self._head = geometry, ring, head
        self._shards = ring.rewards.ndim - 1  # axes of shards: 0 or 1

    @property
    def stored(self) -> tuple[int, int]:
        older = self._geometry.spec.stack - 1
        return max(self._head - self._geometry.rows - older, 0), self._head

    def row(self, name: str, number: int) -> np.ndarray:
        """One array's row ``[N, ...]``."""
        return self._rows(name, number % self._geometry.length, 1)[0]

    def read(self, first: int, end: int) -> dict[str, np.ndarray]:
        start, rows = first % self._geometry.length, end - first
        until = min(start + rows, self._geometry.length)  # the ring may go on at its beginning
        pieces = [(start, until - start), (0, rows - (until - start))]
        block = {
            name: np.concatenate([self._rows(name, at, size) for at, size in pieces if size])
            for name in (*STORED, "slot")
        }
        numbers = block.pop("slot")[block["truncated"]]
        finals = self._ring.finals
        finals = on_host(finals, 0, finals.shape[self._shards])
        finals = finals[0] if self._shards else finals
        block["finals"] = finals[numbers % len(finals)]
        return block

    def _rows(self, name: str, start: int, rows: int) -> np.ndarray:
        """So many rows ``[rows, N, ...]`` from a place on, which do not pass the end."""
        num_envs = self._geometry.num_envs
        array = on_host(getattr(self._ring, name), start * num_envs, rows * num_envs, self._shards)
        if not self._shards:
            return array.reshape(rows, num_envs, *array.shape[1:])
        return side_by_side(array.reshape(len(array), rows, num_envs, *array.shape[2:]))


def side_by_side(array: np.ndarray) -> np.ndarray:
    """Shards' arrays ``[S, rows, n, ...]`` as one of all environments, ``[rows, S * n, ...]``."""
    shards, rows, num_envs = array.shape[:3]
    return np.moveaxis(array, 0, 1).reshape(rows, shards * num_envs, *array.shape[3:])


def by_shard(array: np.ndarray, shards: int) -> np.ndarray:
    """The inverse of `side_by_side`, always a copy: a second device may still read it while the
    next trajectory is written."""
    rows, num_envs = array.shape[:2]
    parts = array.reshape(rows, shards, num_envs // shards, *array.shape[2:])
    return np.moveaxis(parts, 1, 0).copy()


def on_host(array: Any, start: int, size: int, axis: int = 0) -> np.ndarray:
    """Some entries of an array in host memory, without moving all of it there.

    Args:
        axis: of the entries: 0, or 1 where shards come first.
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
