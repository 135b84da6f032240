"""The on-policy buffers of S shards, combined into one buffer for the learner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from flatout.algorithms.parallel.shards import by_axis
from flatout.buffers.arrays import shard_shapes, split
from flatout.buffers.base import (
    Arrays,
    Buffer,
    Data,
    Due,
    Ingested,
    Learned,
    Restored,
    Saved,
    check_shards,
)
from flatout.types import RowSource, Trajectory


class ShardedBuffer(Buffer):
    """Buffers of the same class for S shards; shard s has the s-th block of N / S environments.

    Its store is a list of their stores. Arrays that differ between shards have a leading axis of
    shards in the inputs (`Buffer.axes`).
    `ingest_in_graph` and `learn` are those of one shard; the learner maps them over the shards.

    Args:
        shards: the shards' on-policy buffers.
    """

    def __init__(self, shards: Sequence[Buffer]) -> None:
        self._shards = list(shards)
        self.metrics, self.axes = shards[0].metrics, shards[0].axes
        self.key = shards[0].key  # empty, because on-policy buffers draw nothing
        self.member_counts, self.shard_counts = shards[0].member_counts, shards[0].shard_counts

    def inputs(self, trajectory: Trajectory) -> list[Any]:
        count = len(self._shards)

        def stacked_shapes(axis: Any, shapes: Any) -> Any:
            if axis is None:
                return shapes
            return jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), shapes
            )

        each = self._shards[0].inputs(shard_shapes(trajectory, count))
        return [by_axis(stacked_shapes, self.axes, shapes) for shapes in each]

    def store(self) -> list[Any]:
        return [shard.store() for shard in self._shards]

    def ingest(self, store: list[Any], counts: Any, trajectory: Trajectory) -> Ingested:
        parts = split(trajectory, len(self._shards))
        each = [
            shard.ingest(kept, counts, part)
            for shard, kept, part in zip(self._shards, store, parts, strict=True)
        ]
        # All shards have the same number of dispatches.
        batches = zip(*(due.batches for _, due in each), strict=True)
        inputs = (stacked(several, self.axes) for several in batches)
        return [kept for kept, _ in each], Due(each[0][1].updates, inputs)

    def ingest_in_graph(
        self, trajectory: Trajectory, store: Any, counts: Any, key: Any
    ) -> tuple[Any, Any]:
        return self._shards[0].ingest_in_graph(trajectory, store, counts, key)

    def learn(self, state: Any, store: Any, inputs: Any, key: jax.Array, hp: Any) -> Learned:
        return self._shards[0].learn(state, store, inputs, key, hp)

    def stats(self, store: list[Any], counts: Any, later: int = 0) -> dict[str, float]:
        stats = [shard.stats(kept, counts) for shard, kept in zip(self._shards, store, strict=True)]
        joined = dict(stats[0])
        if "replay_mb" in joined:
            joined["replay_mb"] = sum(one["replay_mb"] for one in stats)
        return joined

    def saved(self, store: list[Any], counts: Any) -> Saved:
        """Return the shards' states. An array's name begins with its shard's number, as ``0/``."""
        arrays: Arrays = {}
        each: list[Data] = []
        for number, (shard, kept) in enumerate(zip(self._shards, store, strict=True)):
            saved, data, _ = shard.saved(kept, counts)
            arrays |= {f"{number}/{name}": array for name, array in saved.items()}
            each.append(data)
        return arrays, {"shards": len(each), "each": each}, None

    def restored(self, arrays: Arrays, data: Data, rows: RowSource | None) -> Restored:
        check_shards(data, len(self._shards))
        store: list[Any] = []
        for number, (shard, saved) in enumerate(zip(self._shards, data["each"], strict=True)):
            start = f"{number}/"
            mine = {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}
            store.append(shard.restored(mine, saved, None)[0])
        return store, ()


def stacked(shards: Sequence[Any], axes: Any) -> Any:
    """Stack the shards' pytrees to one ``[S, ...]``. Where `axes` is None, all shards share one
    array, and the first shard's is returned."""

    def join(axis: Any, *parts: Any) -> Any:
        if axis is None:
            return parts[0]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *parts)

    return by_axis(join, axes, *shards)
