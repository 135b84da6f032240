"""Replay in the learning device's memory: rows are inserted and sampled inside the update.

The learner calls it. Only the newest trajectory is copied to the device, never a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout import tree
from flatout.algorithms.base import Algorithm
from flatout.engine.buffer import Arrays, Data, Due, Learned, Saved
from flatout.engine.replay.base import (
    COUNT,
    STEPS,
    Replay,
    Store,
    averages,
    one_update,
    weights_exponent,
)
from flatout.engine.replay.counters import RingCounters
from flatout.engine.replay.ring import (
    Ring,
    RingLayout,
    RolloutRows,
    final_ids,
    gather,
    next_age,
    ring_shapes,
)
from flatout.engine.replay.sampling import draw, insert_priorities, set_priorities
from flatout.engine.trajectory import join_envs, split_envs
from flatout.types import Obs, Restart, RowSource, Trajectory

ROWS_WRITTEN, UPDATES_DONE = 2, 3
"""Indices in a dispatch's counters: rows stored before it, and updates made before it."""


class Counts(NamedTuple):
    """`RingCounters` in a compiled loop: `rows_written` and `finals` (int32), and `age`."""

    rows_written: Any
    finals: Any
    age: Any


class DispatchInputs(NamedTuple):
    """The inputs of one dispatch: a trajectory's rows, its final frames ``[C, ...]`` and their
    positions ``[C]`` in `Ring.finals` (F for unused ones), the raw key of the sampling stream, and
    int32 ``[4]`` counters, indexed by `COUNT`, `STEPS`, `ROWS_WRITTEN` and `UPDATES_DONE`."""

    piece: Any
    finals: Any
    places: Any
    key: Any
    counters: Any


class NewestRows(NamedTuple):
    """A `RowSource` without the oldest rows of another one."""

    rows: RowSource
    stored: tuple[int, int]

    def read(self, first: int, end: int) -> dict[str, np.ndarray]:
        return self.rows.read(first, end)


class DeviceReplay(Replay):
    """A ring in the learning devices' memory. Each shard's ring is on the shard's device.

    Every shard keeps the final observations of all shards, because they are few. Their capacity is
    the store's.

    Args:
        finals: the initial capacity for final observations. For the other arguments see `Replay`.
        least: the least number of steps after which an episode is truncated, 0 for never, if the
            capacity is part of a compiled loop and never changes; else None.
    """

    in_program = True

    def __init__(
        self,
        algorithm: Algorithm,
        layout: RingLayout,
        trajectory: Trajectory,
        key: np.ndarray,
        finals: int,
        least: int | None = None,
    ) -> None:
        super().__init__(algorithm, layout, trajectory, key, finals)
        self._least = least
        self._shapes = ring_shapes(layout, trajectory, self.counts().final_capacity)
        self.axes: Any = DispatchInputs(0, None, None, 0, None)
        self.member_counts, self.shard_counts = Counts(None, 0, 0), Counts(None, None, 0)

    def inputs(self, trajectory: Trajectory) -> list[Any]:
        rows = trajectory.rewards.shape[0]
        ring = self._shapes

        def each(name: str) -> Any:
            def rows_of(like: Any) -> jax.ShapeDtypeStruct:
                more = int(name in ("frames", "age"))
                shape = (*self._shards, rows + more, self._shard.num_envs, *like.shape[1:])
                return jax.ShapeDtypeStruct(shape, like.dtype)

            return tree.map(rows_of, getattr(ring, name))

        piece = RolloutRows(*(each(name) for name in RolloutRows._fields))
        room = trajectory.finals.index.shape[0]
        inputs = DispatchInputs(
            piece,
            _with_room(ring.finals, room),
            jax.ShapeDtypeStruct((room,), np.int32),
            jax.ShapeDtypeStruct(self.key.shape, self.key.dtype),
            jax.ShapeDtypeStruct((4,), np.int32),
        )
        return [inputs]

    def store(self) -> Store:
        ring = jax.tree.map(lambda s: np.zeros(self._shards + s.shape, s.dtype), self._shapes)
        return Store(ring, self._empty_priorities())

    def ingest(self, store: Store, counts: RingCounters, trajectory: Trajectory) -> Due:
        counters = np.zeros(4, np.int32)
        counters[[ROWS_WRITTEN, UPDATES_DONE]] = counts.rows_written, counts.updates_done
        before = counts.finals
        piece, finals, numbers = counts.ingest(trajectory)
        counters[[COUNT, STEPS]] = counts.updates_due, piece.rewards.size
        if self._shards:
            piece = jax.tree.map(lambda array: split_envs(array, self._count), piece)
        if counts.final_capacity > self._room(store):
            old = tree.map(np.asarray, store.ring.finals)
            old = tree.take(old, 0) if self._shards else old
            larger = counts.grow_finals(old, counts.final_capacity, before)
            ring = store.ring._replace(finals=self._copy_to_shards(larger))
            store = store._replace(ring=ring)
        room, space, count = self._room(store), len(trajectory.finals.index), len(numbers)
        frames = tree.zeros(self._shard.frames, space)
        places = np.full((space,), room, np.int32)
        tree.put(frames, slice(count), finals)
        places[:count] = numbers % room
        inputs = DispatchInputs(piece, frames, places, self.key, counters)
        return Due(store, counts.updates_due, iter([inputs]))

    def loop_counts(self, counts: RingCounters | Counts) -> Counts:
        ages = np.asarray(counts.age).copy().reshape(*self._shards, -1)
        return Counts(np.int32(counts.rows_written), np.int32(counts.finals), ages)

    def ingest_in_graph(
        self, trajectory: Trajectory, store: Store, counts: Counts, key: Any
    ) -> tuple[DispatchInputs, Counts]:
        """See `Buffer.ingest_in_graph`. The host's counterpart is `RingCounters.ingest`."""
        assert trajectory.ended is not None
        layout, truncated = self._shard, trajectory.truncated
        shards, (rows, num_envs) = self._algorithm.shards, truncated.shape

        def older(age: jax.Array, ended: jax.Array) -> tuple[jax.Array, jax.Array]:
            age = next_age(jnp, age, ended)
            return age, age

        last, ages = jax.lax.scan(older, counts.age, trajectory.ended)
        # The final observations of all shards are numbered together, in the order of their steps.
        every = shards.gather(truncated.T).T
        final_id = shards.local(final_ids(jnp, counts.finals, every).T).T
        room = len(tree.first(store.ring.finals))
        number = jnp.take(final_id.reshape(-1), trajectory.finals.index, mode="clip") % room
        used = trajectory.finals.index < rows * num_envs
        finals = shards.gather(layout.newest(trajectory.finals.obs))
        places = shards.gather(jnp.where(used, number, room))
        updates_done = self._replay.updates_due(counts.rows_written * num_envs)
        updates_due = (
            self._replay.updates_due((counts.rows_written + rows) * num_envs) - updates_done
        )
        steps = jnp.int32(rows * num_envs * self._replay.shards)
        obs = tree.map(
            lambda leaf, last: jnp.concatenate([leaf, last[None]]), trajectory.obs,
            trajectory.last_obs,
        )  # fmt: skip
        piece = RolloutRows(
            frames=layout.newest(obs), actions=trajectory.actions, rewards=trajectory.rewards,
            terminated=trajectory.terminated, truncated=truncated,
            age=jnp.concatenate([counts.age[None], ages]), final_id=final_id,
        )  # fmt: skip
        counters = jnp.stack([updates_due, steps, counts.rows_written, updates_done]).astype(
            jnp.int32
        )
        ingested = counts.finals + every.sum(dtype=jnp.int32)
        inputs = DispatchInputs(piece, finals, places, key, counters)
        return inputs, Counts(counts.rows_written + rows, ingested, last)

    def _room(self, store: Store) -> int:
        """F, the capacity of a store's `Ring.finals`."""
        return tree.first(store.ring.finals).shape[len(self._shards)]

    def learn(
        self, state: Any, store: Store, inputs: DispatchInputs, key: jax.Array, hp: Any
    ) -> Learned:
        """Insert the new rows, then draw, learn and set priorities, one update after the other."""
        algorithm, layout, replay = self._algorithm, self._shard, self._replay
        counters = inputs.counters
        rows_written = counters[ROWS_WRITTEN] + inputs.piece.rewards.shape[0]
        ring, priorities = self._insert(store, inputs)
        assert algorithm.advance is not None
        state, scalars = algorithm.advance(state, counters[STEPS], hp)

        def body(u: jax.Array, carry: Any) -> Any:
            state, totals, priorities = carry
            beta = jnp.ones(())
            if replay.prioritized:
                beta = weights_exponent(replay, layout, rows_written, hp.priority_beta)
            update = counters[UPDATES_DONE] + u
            row, env, weight = draw(
                layout, inputs.key, update, rows_written, replay.batch_size, priorities, beta
            )
            rows = gather(jnp, layout, ring, rows_written, row, env)._replace(weights=weight)
            state, totals, error = one_update(algorithm, layout, state, totals, rows, key, hp)
            if priorities is not None:
                alpha = hp.priority_alpha
                priorities = set_priorities(layout, priorities, row, env, error, alpha)
            return state, totals, priorities

        zeros = jnp.zeros((len(algorithm.metrics),), jnp.float32)
        count = counters[COUNT]
        carry = (state, zeros, priorities)
        state, totals, priorities = jax.lax.fori_loop(0, count, body, carry)
        scalars |= averages(algorithm, totals, count)
        return state, Store(ring, priorities), scalars, ()

    def _insert(self, store: Store, inputs: DispatchInputs) -> Store:
        """Write a trajectory's rows into the ring, with the largest priority so far."""
        layout, (ring, priorities) = self._shard, store
        rows, rows_written = inputs.piece.rewards.shape[0], inputs.counters[ROWS_WRITTEN]
        places = (rows_written + jnp.arange(rows + 1)) % layout.length
        arrays: dict[str, Any] = {}

        def write(array: Any, new: Any) -> Any:
            shaped = array.reshape(layout.length, layout.num_envs, *array.shape[1:])
            return shaped.at[places[: len(new)]].set(new).reshape(array.shape)

        for name, new in inputs.piece._asdict().items():
            arrays[name] = tree.map(write, getattr(ring, name), new)
        finals = tree.map(
            lambda kept, new: kept.at[inputs.places].set(new, mode="drop"), ring.finals,
            inputs.finals,
        )  # fmt: skip
        if priorities is not None:
            priorities = insert_priorities(layout, priorities, rows_written, rows)
        return Store(Ring(finals=finals, **arrays), priorities)

    def saved(self, store: Store, counts: RingCounters | Counts) -> Saved:
        if isinstance(counts, Counts):
            loop, counts = counts, self.counts()
            counts.set_counters(int(loop.rows_written), int(loop.finals), np.ravel(loop.age))
            counts.final_capacity = self._room(store)
        return self._saved(store, counts, self._shard)

    def restored(self, arrays: Arrays, data: Data, rows: RowSource | None) -> tuple[Any, Any]:
        if self._least is not None:  # otherwise a ring keeps its capacity, which may have grown
            data = data | {"room": 0}
        store, counts = super().restored(arrays, data, rows)
        kept = self._fitting(store.ring, counts.rows_written)
        if kept < min(counts.rows_written, self._layout.rows) and rows is not None:
            end = rows.stored[1]
            fewer = NewestRows(rows, (max(end - kept - self._layout.depth + 1, 1), end))
            store, counts = super().restored(arrays, data, fewer)
        return store._replace(ring=self._split_ring(store.ring)), counts

    def _fitting(self, ring: Ring, rows_written: int) -> int:
        """Return how many of the newest rows a compiled loop can continue with: its capacity is
        enough for their final observations and for those that follow before they are overwritten.

        Episodes that a run's start truncates, as the next one may do, may be shorter than `least`.
        """
        layout = self._layout
        count = min(rows_written, layout.rows)
        if self._least is None:
            return count
        place = (rows_written - 1 - np.arange(count)) % layout.length
        held = np.cumsum(ring.truncated.reshape(layout.length, -1)[place].sum(1))
        left = layout.rows - np.arange(1, count + 1)
        more = layout.num_envs * (left // self._least if self._least else 0 * left)
        most = self.counts().final_capacity - layout.num_envs
        over = np.flatnonzero(held + more > most)
        return int(over[0]) if len(over) else count

    def truncate(self, store: Store, counts: RingCounters, restarts: Sequence[Restart]) -> Store:
        """See `Buffer.truncate`. The ring is copied to host memory once, changed and returned."""
        ring = self._join_ring(store.ring)
        for restart in restarts:
            ring = counts.truncate(ring, *restart)
        return store._replace(ring=self._split_ring(ring))

    def _join_ring(self, ring: Ring) -> Ring:
        """Join the shards' rings to one ring of all environments, in NumPy arrays."""
        ring = jax.tree.map(np.array, ring)
        if not self._shards:
            return ring
        length, num_envs = self._shard.length, self._shard.num_envs

        def join(array: np.ndarray) -> np.ndarray:
            parts = array.reshape(self._count, length, num_envs, *array.shape[2:])
            joined = join_envs(parts, 1)
            return joined.reshape(-1, *joined.shape[2:])

        finals = tree.take(ring.finals, 0)
        return jax.tree.map(join, ring._replace(finals=()))._replace(finals=finals)

    def _split_ring(self, ring: Ring) -> Ring:
        """Split a ring of all environments into the shards' rings: the inverse of `_join_ring`."""
        if not self._shards:
            return ring
        length = self._shard.length

        def split(array: np.ndarray) -> np.ndarray:
            parts = split_envs(array.reshape(length, -1, *array.shape[1:]), self._count)
            return parts.reshape(self._count, -1, *array.shape[1:])

        finals = self._copy_to_shards(ring.finals)
        return jax.tree.map(split, ring._replace(finals=()))._replace(finals=finals)

    def _copy_to_shards(self, finals: Obs) -> Obs:
        return tree.map(lambda leaf: np.broadcast_to(leaf, self._shards + leaf.shape), finals)


def _with_room(finals: Obs, room: int) -> Obs:
    """Return the shapes of final observations with another capacity."""
    return tree.map(lambda leaf: jax.ShapeDtypeStruct((room, *leaf.shape[1:]), leaf.dtype), finals)
