"""The on-policy buffers of S shards, combined into one buffer for the learner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from flatout.algorithms.parallel.shards import by_axis
from flatout.buffers.arrays import shard_shapes, split
from flatout.buffers.base import Arrays, Buffer, Data, Learned, Saved, check_shards
from flatout.types import Obs, RowSource, Trajectory


class ShardedBuffer(Buffer):
    """Buffers of the same class for S shards; shard s has the s-th block of N / S environments.

    Arrays that differ between shards have a leading axis of shards in the inputs (`Buffer.axes`).
    `ingest_in_graph` and `learn` are those of one shard; the learner maps them over the shards.

    Args:
        shards: the shards' buffers.
        envs: N / S, the number of environments of a shard.
    """

    def __init__(self, shards: Sequence[Buffer], envs: int) -> None:
        self._shards = list(shards)
        self._envs = envs
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

    def ingest(self, trajectory: Trajectory) -> None:
        for shard, part in zip(self._shards, split(trajectory, len(self._shards)), strict=True):
            shard.ingest(part)

    def batches(self) -> Iterator[Any]:
        """Yield the shards' inputs, stacked. All shards have the same number of dispatches."""
        for several in zip(*(shard.batches() for shard in self._shards), strict=True):
            yield stacked(several, self.axes)

    def counts(self) -> Any:
        return stacked([shard.counts() for shard in self._shards], 0)

    def ingest_in_graph(self, trajectory: Trajectory, counts: Any, key: Any) -> tuple[Any, Any]:
        return self._shards[0].ingest_in_graph(trajectory, counts, key)

    def learn(self, state: Any, device_state: Any, inputs: Any, key: jax.Array, hp: Any) -> Learned:
        return self._shards[0].learn(state, device_state, inputs, key, hp)

    def stats(self) -> dict[str, float]:
        stats = [shard.stats() for shard in self._shards]
        joined = dict(stats[0])
        if "replay_mb" in joined:
            joined["replay_mb"] = sum(one["replay_mb"] for one in stats)
        return joined

    def memory_mb(self) -> tuple[float, float]:
        host, device = zip(*(shard.memory_mb() for shard in self._shards), strict=True)
        return sum(host), sum(device)

    def state(self, device_state: Any) -> Saved:
        """Return the shards' states. An array's name begins with its shard's number, as ``0/``."""
        arrays: Arrays = {}
        each: list[Data] = []
        for number, shard in enumerate(self._shards):
            saved, data, _ = shard.state(device_state)
            arrays |= {f"{number}/{name}": array for name, array in saved.items()}
            each.append(data)
        return arrays, {"shards": len(each), "each": each}, None

    def restore(self, arrays: Arrays, data: Data, rows: RowSource | None) -> Any:
        check_shards(data, len(self._shards))
        for number, (shard, saved) in enumerate(zip(self._shards, data["each"], strict=True)):
            start = f"{number}/"
            mine = {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}
            shard.restore(mine, saved, None)
        return ()

    def truncate(self, env: int, last_obs: Obs, first_obs: Obs, device_state: Any) -> Any:
        number, env = divmod(env, self._envs)
        return self._shards[number].truncate(env, last_obs, first_obs, device_state)


def stacked(shards: Sequence[Any], axes: Any) -> Any:
    """Stack the shards' pytrees to one ``[S, ...]``. Where `axes` is None, all shards share one
    array, and the first shard's is returned."""

    def join(axis: Any, *parts: Any) -> Any:
        if axis is None:
            return parts[0]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *parts)

    return by_axis(join, axes, *shards)
