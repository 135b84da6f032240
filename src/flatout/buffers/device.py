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
    arrive,
    draw,
    no_priorities,
    reprioritise,
    restored,
    saved,
)
from flatout.types import RowSource, Trajectory

HEAD, MADE = 2, 3
"""Further counters of a dispatch: rows in the ring, updates made before."""


class Held(NamedTuple):
    """What lives in device memory; priorities are None for uniform sampling."""

    ring: Ring
    priorities: Priorities | None


class Arrival(NamedTuple):
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
        cuts: int,
    ) -> None:
        assert algorithm.replay is not None
        self._algorithm = algorithm
        self._needs = algorithm.replay
        self._geometry = geometry
        self._key = key
        self._ledger = Ledger(geometry, self._needs, cuts)
        self._shapes = ring_shapes(geometry, trajectory, max(cuts, geometry.lanes))
        self._finals = self._shapes.finals.shape[0]  # room for final observations
        self._before = 0  # how many there were when room was last made
        self._booked: tuple[Any, ...] = ()
        self.axes: Any = Arrival(0, 0, 0, 0, None, None)
        self.metrics = (*algorithm.advanced, *algorithm.metrics, "updates")

    def inputs(self, trajectory: Trajectory) -> list[Any]:
        """The shapes of what a dispatch brings."""
        rows, lanes = trajectory.rewards.shape
        ring = self._shapes
        frame = ring.finals.shape[1:]

        def each(name: str) -> jax.ShapeDtypeStruct:
            like, more = getattr(ring, name), int(name in ("frames", "age"))
            return jax.ShapeDtypeStruct((rows + more, lanes, *like.shape[1:]), like.dtype)

        piece = Piece(*(each(name) for name in Piece._fields))
        room = trajectory.final_obs.shape[0]
        arrival = Arrival(
            piece,
            jax.ShapeDtypeStruct((room, *frame), ring.finals.dtype),
            jax.ShapeDtypeStruct((room,), np.int32),
            jax.ShapeDtypeStruct(self._key.shape, self._key.dtype),
            jax.ShapeDtypeStruct((4,), np.int32),
            jax.ShapeDtypeStruct((), np.float32),
        )
        return [arrival]

    def held(self) -> Any:
        """An empty ring."""
        ring = Ring(*(np.zeros(shape.shape, shape.dtype) for shape in self._shapes))
        priorities = None if self._needs.alpha is None else no_priorities(self._geometry)
        return Held(ring, priorities)

    @property
    def room(self) -> int:
        """Final observations that the ring has to have room for, with what is booked."""
        return self._ledger.room

    def make_room(self, room: int) -> None:
        """Have room for so many, as another part needs."""
        self._ledger.room = max(room, self._ledger.room)

    def book(self, trajectory: Trajectory) -> None:
        """Book a trajectory."""
        counters = np.zeros(4, np.int32)
        counters[[HEAD, MADE]] = self._ledger.head, self._ledger.made
        piece, finals, numbers, _ = self._ledger.take(trajectory)
        steps = piece.rewards.size * self._needs.parts
        counters[[COUNT, STEPS]] = self._ledger.due, steps
        self._booked = (piece, finals, numbers, len(trajectory.final_index), counters)

    def arrivals(self) -> Iterator[Any]:
        """Hand over what was booked."""
        piece, finals, numbers, space, counters = self._booked
        if self.room > self._finals:
            self._resize(self.room)
            self._before = numbers.start
        frames = np.zeros((space, *self._shapes.finals.shape[1:]), self._shapes.finals.dtype)
        places = np.full((space,), self._finals, np.int32)
        for i, (number, final) in enumerate(zip(numbers, finals, strict=True)):
            frames[i], places[i] = final, number % self._finals
        yield Arrival(piece, frames, places, self._key, counters, np.float32(self._ledger.beta))

    def _resize(self, room: int) -> None:
        old = self._shapes.finals
        self._finals = room
        finals = jax.ShapeDtypeStruct((room, *old.shape[1:]), old.dtype)
        self._shapes = self._shapes._replace(finals=finals)

    def settle(self) -> None:
        """Make room at once; what is held has to be `grown`."""
        if self.room > self._finals:
            self._resize(self.room)
            self._before = self._ledger.finals

    def fits(self, room: int) -> bool:
        """Whether what is held, with room for so many final observations, is as wanted."""
        return room == max(self._finals, self.room)

    def grown(self, held: Held) -> Held:
        """What is held, with room for the final observations that `take` found."""
        old = held.ring.finals
        if len(old) == self._finals:
            return held
        moved = self._ledger.moved(np.asarray(old), self._finals, self._before)
        return held._replace(ring=held.ring._replace(finals=jnp.asarray(moved)))

    def learn(
        self, state: Any, held: Held, inputs: Arrival, key: jax.Array
    ) -> tuple[Any, Any, Scalars, Any]:
        """Insert, then all the updates that are due, each from rows drawn here."""
        algorithm, geometry, needs = self._algorithm, self._geometry, self._needs
        counters = inputs.counters
        head, rows = counters[HEAD], inputs.piece.rewards.shape[0]
        ring = _insert(geometry, held.ring, head, inputs)
        priorities = held.priorities
        if priorities is not None:
            priorities = arrive(geometry, priorities, head, rows)
        assert algorithm.advance is not None
        state, said = algorithm.advance(state, counters[STEPS])
        newest = head + rows

        def body(u: jax.Array, carry: Any) -> Any:
            state, totals, priorities = carry
            drawn = draw(
                geometry, inputs.key, counters[MADE] + u, newest, needs.batch_size,
                priorities, inputs.beta,
            )  # fmt: skip
            batch = gather(jnp, geometry, ring, newest, drawn.row, drawn.lane)
            batch = batch._replace(weights=drawn.weight)
            state, totals, error = one_update(algorithm, geometry, state, totals, batch, key)
            if priorities is not None:
                assert needs.alpha is not None
                priorities = reprioritise(
                    geometry, priorities, drawn.row, drawn.lane, error, needs.alpha
                )
            return state, totals, priorities

        zeros = jnp.zeros((len(algorithm.metrics),), jnp.float32)
        count = counters[COUNT]
        carry = (state, zeros, priorities)
        state, totals, priorities = jax.lax.fori_loop(0, count, body, carry)
        return state, Held(ring, priorities), said | averages(algorithm, totals, count), ()

    def refresh(self, feedback: list[Any]) -> None:
        """Nothing: priorities are refreshed inside the program, after each update."""

    def facts(self) -> dict[str, float]:
        """How full it is (rows, and their share) and what it takes."""
        return self._ledger.facts(ring_bytes(self._shapes))

    def memory_mb(self) -> tuple[float, float]:
        """MiB in host memory, and in the learning device's."""
        return 0.0, ring_bytes(self._shapes) / 2**20

    def state(self, held: Held) -> tuple[dict[str, np.ndarray], dict[str, Any], RowSource | None]:
        """Counters and priorities; the rows themselves are read from the device."""
        return self._ledger.saved(held.ring, saved(self._geometry, held.priorities))

    def restore(
        self, arrays: dict[str, np.ndarray], data: dict[str, Any], rows: RowSource | None
    ) -> Any:
        """Take over such a state; returns what is held."""
        ring = self._ledger.restore(self.held().ring, arrays, data, rows)
        self._resize(len(ring.finals))
        uniform = self._needs.alpha is None
        return Held(ring, None if uniform else restored(self._geometry, arrays))

    def cut(self, env: int, final_obs: np.ndarray, first_obs: np.ndarray, held: Held) -> Any:
        """The lane's newest step was its episode's last."""
        ring = Ring(*(np.array(array) for array in held.ring))
        ring = self._ledger.cut(ring, env, final_obs, first_obs)
        self._resize(len(ring.finals))
        return held._replace(ring=ring)


def _insert(geometry: Geometry, ring: Ring, head: jax.Array, arrival: Arrival) -> Ring:
    rows = arrival.piece.rewards.shape[0]
    places = (head + jnp.arange(rows + 1)) % geometry.length
    arrays: dict[str, Any] = {}
    for name, new in arrival.piece._asdict().items():
        array = getattr(ring, name)
        shaped = array.reshape(geometry.length, geometry.lanes, *array.shape[1:])
        arrays[name] = shaped.at[places[: len(new)]].set(new).reshape(array.shape)
    finals = ring.finals.at[arrival.places].set(arrival.finals, mode="drop")
    return Ring(finals=finals, **arrays)
