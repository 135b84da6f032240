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
from flatout.buffers.base import Scalars
from flatout.buffers.ledger import Ledger
from flatout.buffers.replay import COUNT, STEPS, averages, one_update
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
from flatout.types import RowSource, Trajectory

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
    beta: Any


class DeviceReplay:
    """A ring in the learning device's memory.

    Args:
        algorithm: learns from it.
        geometry: the ring's sizes.
        trajectory: the shapes of trajectories.
        key: raw key data of the sampling stream, uint32 ``[2]``.
        cuts: final observations to make room for from the start; more make more room, at the
            price of compiling again.
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
        self._algorithm = algorithm
        self._replay = algorithm.replay
        self._geometry = geometry
        self._key = key
        self._ledger = Ledger(geometry, self._replay, finals)
        self._shapes = ring_shapes(geometry, trajectory, max(finals, geometry.num_envs))
        self._finals = self._shapes.finals.shape[0]  # room for final observations
        self._before = 0  # how many there were when room was last made
        self._ingested: tuple[Any, ...] = ()
        self.axes: Any = DispatchInputs(0, 0, 0, 0, None, None)
        self.metrics = (*algorithm.advanced, *algorithm.metrics, "updates")

    def inputs(self, trajectory: Trajectory) -> list[Any]:
        """The shapes of what a dispatch brings."""
        rows, num_envs = trajectory.rewards.shape
        ring = self._shapes
        frame = ring.finals.shape[1:]

        def each(name: str) -> jax.ShapeDtypeStruct:
            like, more = getattr(ring, name), int(name in ("frames", "age"))
            return jax.ShapeDtypeStruct((rows + more, num_envs, *like.shape[1:]), like.dtype)

        piece = Piece(*(each(name) for name in Piece._fields))
        room = trajectory.final_obs.shape[0]
        arrival = DispatchInputs(
            piece,
            jax.ShapeDtypeStruct((room, *frame), ring.finals.dtype),
            jax.ShapeDtypeStruct((room,), np.int32),
            jax.ShapeDtypeStruct(self._key.shape, self._key.dtype),
            jax.ShapeDtypeStruct((4,), np.int32),
            jax.ShapeDtypeStruct((), np.float32),
        )
        return [arrival]

    def device_state(self) -> Any:
        """An empty ring."""
        ring = Ring(*(np.zeros(shape.shape, shape.dtype) for shape in self._shapes))
        priorities = None if self._replay.alpha is None else empty_priorities(self._geometry)
        return DeviceState(ring, priorities)

    @property
    def room(self) -> int:
        """Final observations that the ring has to have room for, with what is booked."""
        return self._ledger.room

    def make_room(self, room: int) -> None:
        """Have room for so many, as another part needs."""
        self._ledger.room = max(room, self._ledger.room)

    def ingest(self, trajectory: Trajectory) -> None:
        """Book a trajectory."""
        counters = np.zeros(4, np.int32)
        counters[[HEAD, MADE]] = self._ledger.head, self._ledger.made
        piece, finals, numbers, _ = self._ledger.ingest(trajectory)
        steps = piece.rewards.size * self._replay.shards
        counters[[COUNT, STEPS]] = self._ledger.due, steps
        self._ingested = (piece, finals, numbers, len(trajectory.final_index), counters)

    def batches(self) -> Iterator[Any]:
        """Hand over what was booked."""
        piece, finals, numbers, space, counters = self._ingested
        if self.room > self._finals:
            self._resize(self.room)
            self._before = numbers.start
        frames = np.zeros((space, *self._shapes.finals.shape[1:]), self._shapes.finals.dtype)
        places = np.full((space,), self._finals, np.int32)
        for i, (number, final) in enumerate(zip(numbers, finals, strict=True)):
            frames[i], places[i] = final, number % self._finals
        yield DispatchInputs(
            piece, frames, places, self._key, counters, np.float32(self._ledger.beta)
        )

    def _resize(self, room: int) -> None:
        old = self._shapes.finals
        self._finals = room
        finals = jax.ShapeDtypeStruct((room, *old.shape[1:]), old.dtype)
        self._shapes = self._shapes._replace(finals=finals)

    def reserve(self) -> None:
        """Make room at once; the device state has to be `grown`."""
        if self.room > self._finals:
            self._resize(self.room)
            self._before = self._ledger.finals

    def fits(self, room: int) -> bool:
        """Whether the device state, with room for so many final observations, is as wanted."""
        return room == max(self._finals, self.room)

    def grown(self, device_state: DeviceState) -> DeviceState:
        """The device state, with room for the final observations that `ingest` found."""
        old = device_state.ring.finals
        if len(old) == self._finals:
            return device_state
        moved = self._ledger.moved(np.asarray(old), self._finals, self._before)
        return device_state._replace(ring=device_state.ring._replace(finals=jnp.asarray(moved)))

    def learn(
        self, state: Any, device_state: DeviceState, inputs: DispatchInputs, key: jax.Array
    ) -> tuple[Any, Any, Scalars, Any]:
        """Insert, then all the updates that are due, each from rows drawn here."""
        algorithm, geometry, replay = self._algorithm, self._geometry, self._replay
        counters = inputs.counters
        head, rows = counters[HEAD], inputs.piece.rewards.shape[0]
        ring = _insert(geometry, device_state.ring, head, inputs)
        priorities = device_state.priorities
        if priorities is not None:
            priorities = insert_priorities(geometry, priorities, head, rows)
        assert algorithm.advance is not None
        state, said = algorithm.advance(state, counters[STEPS])
        newest = head + rows

        def body(u: jax.Array, carry: Any) -> Any:
            state, totals, priorities = carry
            drawn = draw(
                geometry, inputs.key, counters[MADE] + u, newest, replay.batch_size,
                priorities, inputs.beta,
            )  # fmt: skip
            batch = gather(jnp, geometry, ring, newest, drawn.row, drawn.env)
            batch = batch._replace(weights=drawn.weight)
            state, totals, error = one_update(algorithm, geometry, state, totals, batch, key)
            if priorities is not None:
                assert replay.alpha is not None
                priorities = set_priorities(
                    geometry, priorities, drawn.row, drawn.env, error, replay.alpha
                )
            return state, totals, priorities

        zeros = jnp.zeros((len(algorithm.metrics),), jnp.float32)
        count = counters[COUNT]
        carry = (state, zeros, priorities)
        state, totals, priorities = jax.lax.fori_loop(0, count, body, carry)
        return state, DeviceState(ring, priorities), said | averages(algorithm, totals, count), ()

    def update_priorities(self, feedback: list[Any]) -> None:
        """Nothing: priorities are refreshed inside the program, after each update."""

    def stats(self) -> dict[str, float]:
        """How full it is (rows, and their share) and what it takes."""
        return self._ledger.stats(ring_bytes(self._shapes))

    def memory_mb(self) -> tuple[float, float]:
        """MiB in host memory, and in the learning device's."""
        return 0.0, ring_bytes(self._shapes) / 2**20

    def state(
        self, device_state: DeviceState
    ) -> tuple[dict[str, np.ndarray], dict[str, Any], RowSource | None]:
        """Counters and priorities; the rows themselves are read from the device."""
        return self._ledger.saved(device_state.ring, saved(self._geometry, device_state.priorities))

    def restore(
        self, arrays: dict[str, np.ndarray], data: dict[str, Any], rows: RowSource | None
    ) -> Any:
        """Take over such a state; returns the device state."""
        ring = self._ledger.restore(self.device_state().ring, arrays, data, rows)
        self._resize(len(ring.finals))
        uniform = self._replay.alpha is None
        return DeviceState(ring, None if uniform else restored(self._geometry, arrays))

    def truncate(
        self, env: int, final_obs: np.ndarray, first_obs: np.ndarray, device_state: DeviceState
    ) -> Any:
        """The environment's newest step was its episode's last."""
        ring = Ring(*(np.array(array) for array in device_state.ring))
        ring = self._ledger.truncate(ring, env, final_obs, first_obs)
        self._resize(len(ring.finals))
        return device_state._replace(ring=ring)


def _insert(geometry: Geometry, ring: Ring, head: jax.Array, arrival: DispatchInputs) -> Ring:
    rows = arrival.piece.rewards.shape[0]
    places = (head + jnp.arange(rows + 1)) % geometry.length
    arrays: dict[str, Any] = {}
    for name, new in arrival.piece._asdict().items():
        array = getattr(ring, name)
        shaped = array.reshape(geometry.length, geometry.num_envs, *array.shape[1:])
        arrays[name] = shaped.at[places[: len(new)]].set(new).reshape(array.shape)
    finals = ring.finals.at[arrival.places].set(arrival.finals, mode="drop")
    return Ring(finals=finals, **arrays)
