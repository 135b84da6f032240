"""Replay in host memory: a ring of NumPy arrays, from which batches are gathered for the learner.

The learner calls it, with the ring (`Store`) and its counters. A compiled function of (seed,
update) draws the rows, as for replay in device memory. Priorities are set once per trajectory,
after all of its updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
from flatout.engine.replay.hindsight import Hindsight
from flatout.engine.replay.ring import (
    Gathered,
    Ring,
    RingLayout,
    gather,
)
from flatout.engine.replay.sampling import (
    Drawn,
    Priorities,
    bits,
    draw,
    insert_priorities,
    set_priorities,
)
from flatout.types import Device, Restart, RowSource, Trajectory

RANDOM_BLOCK = 256
"""Updates whose random bits are computed in one dispatch. The number does not change the bits."""


class HostReplay(Replay):
    """A ring in host memory, which all shards share.

    Args:
        host: the CPU device that draws rows.
        chunk: the most updates in one dispatch. If a trajectory needs several dispatches, the next
            batches are gathered while the device works.
        hindsight: replaces goals, or None. For the other arguments see `Replay`.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        layout: RingLayout,
        trajectory: Trajectory,
        key: np.ndarray,
        host: Device,
        chunk: int | None = None,
        hindsight: Hindsight | None = None,
    ) -> None:
        super().__init__(algorithm, layout, trajectory, key)
        first = layout.num_envs * np.arange(self._count, dtype=np.int32)
        self._first = first.reshape(*self._shards, 1, 1)  # each shard's first environment
        rows = trajectory.rewards.shape[0]
        self._most = self._replay.most(layout.num_envs, rows)
        self._chunk = min(chunk or self._most, self._most)
        self.axes: Any = (0, None)
        self._host, self._hindsight = host, hindsight
        priorities = self._empty_priorities()
        counters = np.zeros(2, np.int32)
        self._beta = self._alpha = np.ones(2, np.float32)
        if self._replay.prioritized:
            self._alpha, self._beta = algorithm.hp.priority_alpha, algorithm.hp.priority_beta
        self._block = max(RANDOM_BLOCK, 2 * self._most)
        self._words = (-1, *(np.zeros(0, np.uint32),) * 2)  # the block's first update, its bits
        if priorities is None or hindsight is not None:
            self._bits = self._compile(self._draw_bits, (0, None), key, np.int32(0))
        if priorities is not None:
            self._draw = self._compile(
                self._draw_all, (0, 0, None, None), priorities, key, counters, self._beta
            )
            self._insert_priorities = self._compile(
                lambda pri, written: insert_priorities(layout, pri, written, rows), (0, None),
                priorities, np.int32(0), donate=(0,),
            )  # fmt: skip
            drawn = np.zeros((*self._shards, self._most, self._replay.batch_size), np.int32)
            self._set_priorities = self._compile(
                self._set_all_priorities, (0, 0, 0, 0, None, None), priorities, drawn, drawn,
                drawn.astype(np.float32), np.int32(0), self._alpha, donate=(0,),
            )  # fmt: skip
        none = np.zeros((*self._shards, self._chunk, self._replay.batch_size), np.int32)
        batches = self._gather(self._empty(), 0, none, none)
        self._batches = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batches)

    def store(self) -> Store:
        return Store(self._empty(), jax.device_put(self._empty_priorities(), self._host))

    def _compile(
        self, function: Any, axes: tuple[int | None, ...], *arguments: Any,
        donate: tuple[int, ...] = (),
    ) -> Any:  # fmt: skip
        """Map one shard's function over all shards and compile it for the host's CPU."""
        if self._shards:
            function = jax.vmap(function, axes)
        on = jax.sharding.SingleDeviceSharding(self._host)
        program = jax.jit(function, in_shardings=on, out_shardings=on, donate_argnums=donate)
        return program.lower(*arguments).compile()

    def inputs(self, trajectory: Trajectory) -> list[Any]:
        counters = jax.ShapeDtypeStruct((2,), np.int32)
        return [(self._batches, counters), ((), counters)]

    def ingest(self, store: Store, counts: RingCounters, trajectory: Trajectory) -> Due:
        rows_written, updates_done = counts.rows_written, counts.updates_done
        ring, piece = counts.write(store.ring, trajectory)
        priorities = store.priorities
        if priorities is not None:
            priorities = self._insert_priorities(priorities, np.int32(rows_written))
        store, count, steps = Store(ring, priorities), counts.updates_due, piece.rewards.size
        if not count:
            # () selects a program without the loop: XLA computes its constants even for 0 updates.
            return Due(store, 0, iter([((), np.array([0, steps], np.int32))]))
        weights, rows_written = None, counts.rows_written
        if priorities is None:
            row, env = self._uniform(updates_done, rows_written)
        else:
            counters = np.array([updates_done, rows_written], np.int32)
            drawn = self._draw(priorities, self.key, counters, self._beta)
            row, env, weights = map(np.asarray, drawn)
        lanes = later = row
        if (hindsight := self._hindsight) is not None:
            assert counts.ends is not None
            word = self._random(updates_done)[0][..., self._replay.batch_size :]
            lanes = env + self._first
            later = hindsight.draw(counts.ends, rows_written, updates_done, row, lanes, word)

        def batches() -> Iterator[Any]:
            for start in range(0, count, self._chunk):
                stop = min(start + self._chunk, count)
                part = (_slice(drawn, start, self._chunk) for drawn in (row, env))
                batch = self._gather(ring, rows_written, *part)
                if hindsight is not None:
                    sampled = (_slice(one, start, self._chunk) for one in (row, lanes, later))
                    batch = hindsight.relabel(batch, ring, *sampled)
                if weights is not None:
                    batch = batch._replace(weights=_slice(weights, start, self._chunk))
                yield batch, np.array([stop - start, 0 if start else steps], np.int32)

        return Due(store, count, batches(), (row, env))

    def learn(self, state: Any, store: Any, inputs: Any, key: jax.Array, hp: Any) -> Learned:
        """Make all updates of a dispatch, one batch after the other; none if there is no batch."""
        batches, counters = inputs
        algorithm, layout = self._algorithm, self._shard
        assert algorithm.advance is not None
        state, scalars = algorithm.advance(state, counters[STEPS], hp)
        zeros = jnp.zeros((len(algorithm.metrics),), jnp.float32)
        if batches == ():
            scalars |= averages(algorithm, zeros, counters[COUNT])
            return state, store, scalars, ()

        def body(u: jax.Array, carry: Any) -> Any:
            state, totals, errors = carry
            batch = jax.tree.map(lambda leaf: leaf[u], batches)
            state, totals, error = one_update(algorithm, layout, state, totals, batch, key, hp)
            return state, totals, errors.at[u].set(error)

        errors = jnp.zeros((self._chunk, self._replay.batch_size), jnp.float32)
        count = counters[COUNT]
        state, totals, errors = jax.lax.fori_loop(0, count, body, (state, zeros, errors))
        feedback = errors if self._replay.prioritized else ()
        return state, store, scalars | averages(algorithm, totals, count), feedback

    def update_priorities(self, store: Store, due: Due, feedback: list[Any]) -> Store:
        ring, priorities = store
        if priorities is None or not due.updates:
            return store
        errors = np.zeros((*self._shards, self._most, self._replay.batch_size), np.float32)
        fed_back = np.concatenate([np.asarray(one) for one in feedback], -2)[..., : self._most, :]
        errors[..., : fed_back.shape[-2], :] = fed_back
        count = np.int32(due.updates)
        priorities = self._set_priorities(priorities, *due.drawn, errors, count, self._alpha)
        return Store(ring, priorities)

    def saved(self, store: Store, counts: RingCounters) -> Saved:
        return self._saved(store, counts, self._layout)

    def restored(self, arrays: Arrays, data: Data, rows: RowSource | None) -> tuple[Any, Any]:
        (ring, priorities), counts = super().restored(arrays, data, rows)
        return Store(ring, jax.device_put(priorities, self._host)), counts

    def truncate(self, store: Store, counts: RingCounters, restarts: Sequence[Restart]) -> Store:
        ring = store.ring
        for restart in restarts:
            ring = counts.truncate(ring, *restart)
        return store._replace(ring=ring)

    def _gather(self, ring: Ring, rows_written: int, row: np.ndarray, env: np.ndarray) -> Gathered:
        return gather(np, self._layout, ring, rows_written, row, env + self._first)

    def _uniform(self, updates_done: int, rows_written: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the uniform draws of `draw` for K updates, of which `updates_done` is the first:
        rows and environments ``[..., K, B]``."""
        word, other = (
            words[..., : self._replay.batch_size] for words in self._random(updates_done)
        )
        first, rows = self._shard.window(rows_written)
        row = (word % np.uint32(rows)).astype(np.int32) + np.int32(first)
        return row, (other % np.uint32(self._shard.num_envs)).astype(np.int32)

    def _random(self, updates_done: int) -> tuple[np.ndarray, np.ndarray]:
        """Return two arrays of random words ``[..., K, B]`` for K updates, with hindsight
        ``[..., K, 2 B]``. They are computed for many updates at once."""
        start, word, other = self._words
        if not start <= updates_done <= start + self._block - self._most or start < 0:
            bits = self._bits(self.key, np.int32(updates_done))
            start, word, other = self._words = (updates_done, *map(np.asarray, bits))
        updates = (..., slice(updates_done - start, updates_done - start + self._most), slice(None))
        return word[updates], other[updates]

    def _draw_bits(self, key: jax.Array, updates_done: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return two arrays of random words for the updates from `updates_done` on; see
        `_random`."""
        size = self._replay.batch_size * (1 if self._hindsight is None else 2)
        return jax.vmap(lambda update: bits(key, update, size))(
            updates_done + jnp.arange(self._block)
        )

    def _draw_all(
        self, priorities: Priorities | None, key: jax.Array, counters: jax.Array, beta: jax.Array
    ) -> Drawn:
        """Draw one shard's rows ``[K, B]`` for all K updates of a trajectory, by priority."""
        (updates_done, rows_written), size = counters, self._replay.batch_size
        exponent = weights_exponent(self._replay, self._shard, rows_written, beta)

        def one(update: jax.Array) -> Drawn:
            return draw(self._shard, key, update, rows_written, size, priorities, exponent)

        return jax.vmap(one)(updates_done + jnp.arange(self._most))

    def _set_all_priorities(
        self, priorities: Priorities, row: jax.Array, env: jax.Array, errors: jax.Array,
        count: jax.Array, alpha: jax.Array,
    ) -> Priorities:  # fmt: skip
        def body(u: jax.Array, priorities: Priorities) -> Priorities:
            return set_priorities(self._shard, priorities, row[u], env[u], errors[u], alpha)

        return jax.lax.fori_loop(0, count, body, priorities)


def _slice(array: np.ndarray, start: int, size: int) -> np.ndarray:
    """Return `size` of the updates ``[..., K, B]`` from `start` on. If there are fewer, the last
    one is repeated."""
    if start == 0 and array.shape[-2] == size:
        return array
    index = np.minimum(np.arange(start, start + size), array.shape[-2] - 1)
    return np.take(array, index, -2)
