"""Replay in the learning device's memory: inserted, sampled and reprioritised inside the update.

No batch crosses the bus; only what was just collected does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import Algorithm
from flatout.buffers.base import Arrays, Buffer, Data, Learned, Saved
from flatout.buffers.ledger import Ledger
from flatout.buffers.replay import (
    COUNT,
    STEPS,
    averages,
    one_update,
    replay_metrics,
    weights_exponent,
)
from flatout.buffers.ring import Geometry, Piece, Ring, gather, ring_bytes, ring_shapes
from flatout.buffers.sampling import (
    Priorities,
    draw,
    empty_priorities,
    insert_priorities,
    restored,
    saved,
    set_priorities,
)
from flatout.types import Array, RowSource, Trajectory

HEAD, MADE = 2, 3
"""Further counters of a dispatch: rows in the ring, updates made before."""


class DeviceState(NamedTuple):
    """What lives in device memory; priorities are None for uniform sampling."""

    ring: Ring
    priorities: Priorities | None


class DispatchInputs(NamedTuple):
    """What a dispatch brings: a piece, its final frames ``[C, ...]`` with their places ``[C]``
    (F for none), the raw key of the sampling stream, and counters."""

    piece: Any
    finals: Any
    places: Any
    key: Any
    counters: Any


class DeviceReplay(Buffer):
    """A ring in the learning device's memory.

    Args:
        algorithm: learns from it.
        geometry: the ring's sizes.
        trajectory: the shapes of trajectories.
        key: raw key data of the sampling stream, uint32 ``[2]``.
        finals: final observations to make room for from the start.

    Attributes:
        ledger: its counters.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        geometry: Geometry,
        trajectory: Trajectory,
        key: np.ndarray,
        finals: int,
    ) -> None:
        assert algorithm.replay is not None
        super().__init__(algorithm)
        self._replay = algorithm.replay
        self._geometry = geometry
        self._key = key
        self.ledger = Ledger(geometry, self._replay, finals)
        self._shapes = ring_shapes(geometry, trajectory, self.ledger.room)
        self._before = 0  # final observations when room was last made
        self._ingested: tuple[Any, ...] = ()
        self.axes: Any = DispatchInputs(0, 0, 0, 0, None)
        self.metrics = replay_metrics(algorithm)

    def inputs(self, trajectory: Trajectory) -> list[Any]:
        rows, num_envs = trajectory.rewards.shape
        ring = self._shapes
        frame = ring.finals.shape[1:]

        def each(name: str) -> jax.ShapeDtypeStruct:
            like, more = getattr(ring, name), int(name in ("frames", "age"))
            return jax.ShapeDtypeStruct((rows + more, num_envs, *like.shape[1:]), like.dtype)

        piece = Piece(*(each(name) for name in Piece._fields))
        room = trajectory.final_obs.shape[0]
        inputs = DispatchInputs(
            piece,
            jax.ShapeDtypeStruct((room, *frame), ring.finals.dtype),
            jax.ShapeDtypeStruct((room,), np.int32),
            jax.ShapeDtypeStruct(self._key.shape, self._key.dtype),
            jax.ShapeDtypeStruct((4,), np.int32),
        )
        return [inputs]

    def device_state(self) -> Any:
        ring = Ring(*(np.zeros(shape.shape, shape.dtype) for shape in self._shapes))
        priorities = empty_priorities(self._geometry) if self._replay.prioritized else None
        return DeviceState(ring, priorities)

    def ingest(self, trajectory: Trajectory) -> None:
        counters = np.zeros(4, np.int32)
        counters[[HEAD, MADE]] = self.ledger.head, self.ledger.made
        piece, finals, numbers = self.ledger.ingest(trajectory)
        steps = piece.rewards.size * self._replay.shards
        counters[[COUNT, STEPS]] = self.ledger.due, steps
        self._ingested = (piece, finals, numbers, len(trajectory.final_index), counters)

    def batches(self) -> Iterator[Any]:
        piece, finals, numbers, space, counters = self._ingested
        self.reserve(numbers.start)
        room, *frame = self._shapes.finals.shape
        frames = np.zeros((space, *frame), self._shapes.finals.dtype)
        places = np.full((space,), room, np.int32)
        for i, (number, final) in enumerate(zip(numbers, finals, strict=True)):
            frames[i], places[i] = final, number % room
        yield DispatchInputs(piece, frames, places, self._key, counters)

    def _resize(self, room: int) -> None:
        old = self._shapes.finals
        finals = jax.ShapeDtypeStruct((room, *old.shape[1:]), old.dtype)
        self._shapes = self._shapes._replace(finals=finals)

    def reserve(self, finals: int) -> None:
        """Make the room that the ledger asks for; the device state then has to be `resized`.

        Args:
            finals: how many final observations are in the device state.
        """
        if self.ledger.room > self._shapes.finals.shape[0]:
            self._resize(self.ledger.room)
            self._before = finals

    def resized(self, device_state: DeviceState) -> DeviceState:
        old, room = device_state.ring.finals, self._shapes.finals.shape[0]
        if len(old) == room:
            return device_state
        moved = self.ledger.moved(np.asarray(old), room, self._before)
        return device_state._replace(ring=device_state.ring._replace(finals=jnp.asarray(moved)))

    def learn(
        self, state: Any, device_state: DeviceState, inputs: DispatchInputs, key: jax.Array,
        hp: Any,
    ) -> Learned:  # fmt: skip
        algorithm, geometry, replay = self._algorithm, self._geometry, self._replay
        counters = inputs.counters
        head, rows = counters[HEAD], inputs.piece.rewards.shape[0]
        ring = _insert(geometry, device_state.ring, head, inputs)
        priorities = device_state.priorities
        if priorities is not None:
            priorities = insert_priorities(geometry, priorities, head, rows)
        assert algorithm.advance is not None
        state, scalars = algorithm.advance(state, counters[STEPS], hp)
        newest = head + rows
        beta = jnp.ones(())
        if replay.prioritized:
            beta = weights_exponent(replay, geometry, newest, hp.priority_beta)

        def body(u: jax.Array, carry: Any) -> Any:
            state, totals, priorities = carry
            drawn = draw(
                geometry, inputs.key, counters[MADE] + u, newest, replay.batch_size,
                priorities, beta,
            )  # fmt: skip
            batch = gather(jnp, geometry, ring, newest, drawn.row, drawn.env)
            batch = batch._replace(weights=drawn.weight)
            state, totals, error = one_update(algorithm, geometry, state, totals, batch, key, hp)
            if priorities is not None:
                priorities = set_priorities(
                    geometry, priorities, drawn.row, drawn.env, error, hp.priority_alpha
                )
            return state, totals, priorities

        zeros = jnp.zeros((len(algorithm.metrics),), jnp.float32)
        count = counters[COUNT]
        carry = (state, zeros, priorities)
        state, totals, priorities = jax.lax.fori_loop(0, count, body, carry)
        scalars |= averages(algorithm, totals, count)
        return state, DeviceState(ring, priorities), scalars, ()

    def stats(self) -> dict[str, float]:
        return self.ledger.stats(ring_bytes(self._shapes))

    def memory_mb(self) -> tuple[float, float]:
        return 0.0, ring_bytes(self._shapes) / 2**20

    def state(self, device_state: DeviceState) -> Saved:
        return self.ledger.saved(device_state.ring, saved(self._geometry, device_state.priorities))

    def restore(self, arrays: Arrays, data: Data, rows: RowSource | None) -> Any:
        ring = self.ledger.restore(self.device_state().ring, arrays, data, rows)
        self._resize(len(ring.finals))
        prioritized = self._replay.prioritized
        return DeviceState(ring, restored(self._geometry, arrays) if prioritized else None)

    def truncate(
        self, env: int, last_obs: Array, first_obs: Array, device_state: DeviceState
    ) -> Any:
        ring = Ring(*(np.array(array) for array in device_state.ring))
        ring = self.ledger.truncate(ring, env, last_obs, first_obs)
        self._resize(len(ring.finals))
        return device_state._replace(ring=ring)


def _insert(geometry: Geometry, ring: Ring, head: jax.Array, inputs: DispatchInputs) -> Ring:
    rows = inputs.piece.rewards.shape[0]
    places = (head + jnp.arange(rows + 1)) % geometry.length
    arrays: dict[str, Any] = {}
    for name, new in inputs.piece._asdict().items():
        array = getattr(ring, name)
        shaped = array.reshape(geometry.length, geometry.num_envs, *array.shape[1:])
        arrays[name] = shaped.at[places[: len(new)]].set(new).reshape(array.shape)
    finals = ring.finals.at[inputs.places].set(inputs.finals, mode="drop")
    return Ring(finals=finals, **arrays)
