"""The parts that replay in host memory and replay on devices share: a ring of transitions for all
shards, one update, and the weights of prioritised sampling."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import Algorithm, ReplaySpec
from flatout.algorithms.common.optimiser import schedule
from flatout.engine.buffer import Arrays, Buffer, Data, Saved, Scalars, check_shards
from flatout.engine.replay.counters import RingCounters
from flatout.engine.replay.ring import (
    Gathered,
    Ring,
    RingLayout,
    merge,
    ring_bytes,
    ring_shapes,
)
from flatout.engine.replay.sampling import (
    Priorities,
    empty_priorities,
    restored,
    saved,
)
from flatout.randomness import wrap_key
from flatout.types import RowSource, Trajectory

COUNT, STEPS = range(2)
"""Indices in a dispatch's counters: updates to make, and environment steps of the trajectory."""


class Store(NamedTuple):
    """A ring and its priorities, which are None for uniform sampling.

    On the learning devices, JAX arrays ``[S, ...]`` with an axis for shards if there are several.
    In host memory, NumPy arrays that all shards share and that are written in place, with
    priorities on the CPU device that draws.
    """

    ring: Ring
    priorities: Any


class Replay(Buffer):
    """The base of replay in host memory and on devices: a ring of transitions in S shards.

    Shard s has the s-th block of N / S environments. It samples only their transitions, with
    their priorities. With shards, batches have a leading axis ``[S, ...]``. Host and
    device replay save the same state.

    Args:
        algorithm: the algorithm that learns from the ring, built for one shard.
        layout: the sizes of the ring, or of one shard's ring.
        trajectory: the shapes of trajectories, or of one shard's trajectories.
        key: raw key data of the sampling stream, uint32 ``[2]``, or ``[S, 2]`` for S shards.
        finals: the initial capacity for final observations.
    """

    def __init__(
        self, algorithm: Algorithm, layout: RingLayout, trajectory: Trajectory, key: np.ndarray,
        finals: int = 0,
    ) -> None:  # fmt: skip
        assert algorithm.replay is not None
        super().__init__(algorithm)
        self._replay = algorithm.replay
        self._shard, self.key = layout, key
        self._shards = key.shape[:-1]  # () or (S,)
        self._count = math.prod(self._shards)
        self._layout = replace(layout, num_envs=layout.num_envs * self._count)
        self._finals = finals
        self._whole = ring_shapes(self._layout, trajectory, self.counts().final_capacity)
        self.metrics = (*algorithm.advanced, *algorithm.metrics, "updates")

    def counts(self) -> RingCounters:
        return RingCounters(self._layout, self._replay.whole(), self._finals)

    def stats(self, store: Store, counts: Any, later: int = 0) -> dict[str, float]:
        rows = min(int(counts.rows_written) + later, self._layout.rows)
        megabytes = ring_bytes(store.ring) / 2**20
        return {"replay_fill": rows / self._layout.rows, "replay_mb": megabytes}

    def _saved(self, store: Store, counts: RingCounters, layout: RingLayout) -> Saved:
        arrays, data, rows = counts.saved(store.ring, layout)
        priorities = saved(self._shard, store.priorities)
        return arrays | priorities, data | {"shards": self._count}, rows

    def restored(self, arrays: Arrays, data: Data, rows: RowSource | None) -> tuple[Any, Any]:
        """See `Buffer.restored`. The ring is that of all shards."""
        check_shards(data, self._count)
        counts = self.counts()
        ring = counts.restore(self._empty(), arrays, data, rows)
        priorities = None
        if self._replay.prioritized:
            priorities = restored(self._shard, arrays, int(data["head"]), counts.rows_written)
        return Store(ring, priorities), counts

    def _empty(self) -> Ring:
        return jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), self._whole)

    def _empty_priorities(self) -> Priorities | None:
        if not self._replay.prioritized:
            return None
        empty = empty_priorities(self._shard)
        return jax.tree.map(lambda leaf: np.broadcast_to(leaf, self._shards + leaf.shape), empty)


def one_update(
    algorithm: Algorithm, layout: RingLayout, state: Any, totals: jax.Array, gathered: Gathered,
    key: jax.Array, hp: Any,
) -> tuple[Any, jax.Array, jax.Array]:  # fmt: skip
    """Make one update from gathered transitions; used by host replay and device replay. Return the
    state, `totals` plus the metrics, and the size of each transition's error ``[B]``."""
    merged = algorithm.shards.one_by_one(functools.partial(merge, layout))
    state, metrics, error = algorithm.update(state, merged(gathered, hp.gamma), wrap_key(key), hp)
    return state, totals + jnp.stack([metrics[name] for name in algorithm.metrics]), error


def weights_exponent(
    replay: ReplaySpec, layout: RingLayout, rows_written: jax.Array, beta: jax.Array
) -> jax.Array:
    """Return the exponent of the importance weights after `rows_written` rows. It moves linearly
    from the first to the second entry of `beta` (``hp.priority_beta``)."""
    return schedule(beta, rows_written * (layout.num_envs * replay.shards), replay.total_steps)


def averages(algorithm: Algorithm, totals: jax.Array, count: jax.Array) -> Scalars:
    """Return each metric's mean over `count` updates (0 without updates), and ``updates``."""
    means = totals / jnp.maximum(count, 1)
    scalars = dict(zip(algorithm.metrics, means, strict=True))
    return scalars | {"updates": count.astype(jnp.float32)}
