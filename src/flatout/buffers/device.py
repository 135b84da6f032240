"""Replay in the learning device's memory: rows are inserted and sampled inside the update.

The learner calls it. Only the newest trajectory is copied to the device, never a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout import tree
from flatout.algorithms.base import Algorithm
from flatout.buffers.base import Arrays, Data, Learned, Saved, check_shards
from flatout.buffers.replay import COUNT, STEPS, Replay, averages, one_update, weights_exponent
from flatout.buffers.ring import (
    Ring,
    RingLayout,
    RolloutRows,
    final_ids,
    gather,
    next_age,
    ring_bytes,
    ring_shapes,
)
from flatout.buffers.rows import by_shard, side_by_side
from flatout.buffers.sampling import Priorities, draw, insert_priorities, set_priorities
from flatout.types import Obs, RowSource, Trajectory

ROWS_WRITTEN, UPDATES_DONE = 2, 3
"""Indices in a dispatch's counters: rows stored before it, and updates made before it."""


class DeviceState(NamedTuple):
    """The replay that is in device memory; `priorities` is None for uniform sampling."""

    ring: Ring
    priorities: Priorities | None


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


class DeviceReplay(Replay):
    """A ring in the learning devices' memory. Each shard's ring is on the shard's device.

    Every shard keeps the final observations of all shards, because they are few.

    Args:
        trajectory: the shapes of trajectories, or of a shard's. For the other arguments see
            `Replay`.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        layout: RingLayout,
        trajectory: Trajectory,
        key: np.ndarray,
        finals: int,
    ) -> None:
        super().__init__(algorithm, layout, key, finals)
        self._like = trajectory
        self._shapes = ring_shapes(layout, trajectory, self.ring_counters.final_capacity)
        self._before = 0  # the number of the next final observation when `finals` last grew
        self._ingested: tuple[Any, ...] = ()
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

    def device_state(self) -> Any:
        ring = jax.tree.map(lambda s: np.zeros(self._shards + s.shape, s.dtype), self._shapes)
        return DeviceState(ring, self._empty_priorities())

    def ingest(self, trajectory: Trajectory) -> None:
        counters = np.zeros(4, np.int32)
        counters[[ROWS_WRITTEN, UPDATES_DONE]] = (
            self.ring_counters.rows_written,
            self.ring_counters.updates_done,
        )
        before = self.ring_counters.finals
        piece, finals, numbers = self.ring_counters.ingest(trajectory)
        counters[[COUNT, STEPS]] = self.ring_counters.updates_due, piece.rewards.size
        if self._shards:
            piece = jax.tree.map(lambda array: by_shard(array, self._count), piece)
        self._ingested = (piece, finals, numbers, before, len(trajectory.finals.index), counters)

    def batches(self) -> Iterator[Any]:
        piece, finals, numbers, before, space, counters = self._ingested
        if self.ring_counters.final_capacity > self._room:
            self._resize(self.ring_counters.final_capacity)
            self._before = before
        room, count = self._room, len(numbers)
        frames = tree.zeros(self._shard.frames, space)
        places = np.full((space,), room, np.int32)
        tree.put(frames, slice(count), finals)
        places[:count] = numbers % room
        yield DispatchInputs(piece, frames, places, self.key, counters)

    def counts(self) -> Counts:
        ring_counters = self.ring_counters
        ages = ring_counters.age.copy().reshape(*self._shards, -1)
        return Counts(np.int32(ring_counters.rows_written), np.int32(ring_counters.finals), ages)

    def ingest_in_graph(
        self, trajectory: Trajectory, counts: Counts, key: Any
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
        room = self._room
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

    def advance_counters(self, rows: int) -> None:
        self.ring_counters.rows_written += rows

    def sync_counters(self, counts: Counts) -> None:
        self.ring_counters.set_counters(
            int(counts.rows_written), int(counts.finals), np.ravel(counts.age)
        )

    @property
    def _room(self) -> int:
        """F, the capacity of `Ring.finals`."""
        return tree.first(self._shapes.finals).shape[0]

    def _resize(self, room: int) -> None:
        self._shapes = self._shapes._replace(finals=_with_room(self._shapes.finals, room))

    def resized(self, device_state: DeviceState) -> DeviceState:
        old, room = device_state.ring.finals, self._room
        if tree.first(old).shape[len(self._shards)] == room:
            return device_state
        finals = tree.map(lambda a: np.asarray(a)[0] if self._shards else np.asarray(a), old)
        larger = self.ring_counters.grow_finals(finals, room, self._before)
        ring = device_state.ring._replace(finals=self._copy_to_shards(larger))
        return device_state._replace(ring=ring)

    def learn(
        self, state: Any, device_state: DeviceState, inputs: DispatchInputs, key: jax.Array,
        hp: Any,
    ) -> Learned:  # fmt: skip
        """Insert the new rows, then draw, learn and set priorities, one update after the other."""
        algorithm, layout, replay = self._algorithm, self._shard, self._replay
        counters = inputs.counters
        rows_written = counters[ROWS_WRITTEN] + inputs.piece.rewards.shape[0]
        ring, priorities = self._insert(device_state, inputs)
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
        return state, DeviceState(ring, priorities), scalars, ()

    def _insert(self, state: DeviceState, inputs: DispatchInputs) -> DeviceState:
        """Write a trajectory's rows into the ring, with the largest priority so far."""
        layout, (ring, priorities) = self._shard, state
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
        return DeviceState(Ring(finals=finals, **arrays), priorities)

    def stats(self) -> dict[str, float]:
        return self.ring_counters.stats(self._count * ring_bytes(self._shapes))

    def memory_mb(self) -> tuple[float, float]:
        return 0.0, self._count * ring_bytes(self._shapes) / 2**20

    def state(self, device_state: DeviceState) -> Saved:
        return self._state(device_state.ring, device_state.priorities, self._shard)

    def restore(self, arrays: Arrays, data: Data, rows: RowSource | None) -> Any:
        check_shards(data, self._count)
        shapes = ring_shapes(self._layout, self._like, self.ring_counters.final_capacity)
        empty = jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), shapes)
        ring = self.ring_counters.restore(empty, arrays, data, rows)
        self._resize(len(tree.first(ring.finals)))
        return DeviceState(self._split_ring(ring), self._restored(arrays))

    def truncate(self, env: int, last_obs: Obs, first_obs: Obs, device_state: DeviceState) -> Any:
        """See `Buffer.truncate`. The ring is copied to host memory, changed and returned."""
        ring = self.ring_counters.truncate(
            self._join_ring(device_state.ring), env, last_obs, first_obs
        )
        self._resize(len(tree.first(ring.finals)))
        return device_state._replace(ring=self._split_ring(ring))

    def _join_ring(self, ring: Ring) -> Ring:
        """Join the shards' rings to one ring of all environments, in NumPy arrays."""
        ring = jax.tree.map(np.array, ring)
        if not self._shards:
            return ring
        length, num_envs = self._shard.length, self._shard.num_envs

        def join(array: np.ndarray) -> np.ndarray:
            parts = array.reshape(self._count, length, num_envs, *array.shape[2:])
            joined = side_by_side(parts)
            return joined.reshape(-1, *joined.shape[2:])

        finals = tree.take(ring.finals, 0)
        return jax.tree.map(join, ring._replace(finals=()))._replace(finals=finals)

    def _split_ring(self, ring: Ring) -> Ring:
        """Split a ring of all environments into the shards' rings: the inverse of `_join_ring`."""
        if not self._shards:
            return ring
        length = self._shard.length

        def split(array: np.ndarray) -> np.ndarray:
            parts = by_shard(array.reshape(length, -1, *array.shape[1:]), self._count)
            return parts.reshape(self._count, -1, *array.shape[1:])

        finals = self._copy_to_shards(ring.finals)
        return jax.tree.map(split, ring._replace(finals=()))._replace(finals=finals)

    def _copy_to_shards(self, finals: Obs) -> Obs:
        return tree.map(lambda leaf: np.broadcast_to(leaf, self._shards + leaf.shape), finals)


def _with_room(finals: Obs, room: int) -> Obs:
    """Return the shapes of final observations with another capacity."""
    return tree.map(lambda leaf: jax.ShapeDtypeStruct((room, *leaf.shape[1:]), leaf.dtype), finals)
