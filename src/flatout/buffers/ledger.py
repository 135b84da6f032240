"""The books of a ring: counters, ages, final observations; and its way to disk and back.

Host replay and device replay keep the same books, on the host; only where the arrays lie differs.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from flatout.algorithms.base import ReplaySpec
from flatout.buffers.ring import MAX_AGE, Geometry, Piece, Ring
from flatout.errors import CheckpointError
from flatout.types import RowSource, Trajectory

STORED = ("frames", "actions", "rewards", "terminated", "truncated", "age")
"""What is kept of a row, and its final observations, whose places are the ring's own."""


class Ledger:
    """Counts rows, updates and final observations.

    Args:
        geometry: the ring's sizes.
        needs: what the algorithm asks for.
        room: final observations that the ring can hold at first, at least one a environment.

    Attributes:
        head: rows ever ingested.
        made: updates ever paid for, the newest trajectory's included.
        due: updates that the newest trajectory pays for.
        room: final observations that the ring has to have room for.
    """

    def __init__(self, geometry: Geometry, replay: ReplaySpec, room: int = 0) -> None:
        self._geometry = geometry
        self._replay = replay
        self.head = 0
        self.made = 0
        self.due = 0
        self._age = np.zeros((geometry.num_envs,), np.uint8)
        self._finals = 0  # final observations ever taken in
        self._final_rows: deque[int] = deque()  # the rows whose final observations are still needed
        self.room = max(room, geometry.num_envs)

    @property
    def finals(self) -> int:
        """Final observations ever taken in."""
        return self._finals

    @property
    def beta(self) -> float:
        """The exponent of the importance weights now."""
        start, end = self._replay.beta
        steps = self.head * self._geometry.num_envs * self._replay.shards
        done = min(steps / self._replay.total_steps, 1.0)
        return start + (end - start) * done

    def ingest(self, trajectory: Trajectory) -> tuple[Piece, list[np.ndarray], range, int]:
        """Book a trajectory.

        Returns:
            The piece; its final frames and their numbers; and the room that final frames need.
        """
        geometry = self._geometry
        rewards, ended = trajectory.rewards, trajectory.ended
        rows, num_envs = rewards.shape
        obs = np.concatenate([trajectory.obs, trajectory.last_obs[None]])
        age = np.empty((rows + 1, num_envs), np.uint8)
        age[0] = self._age
        for t in range(rows):
            age[t + 1] = np.where(ended[t], 0, np.minimum(age[t], MAX_AGE - 1) + 1)
        self._age = age[rows].copy()
        slot = np.zeros((rows, num_envs), np.int32)
        finals: list[np.ndarray] = []
        first = self._finals
        if trajectory.truncated.any():
            for index, final in zip(trajectory.final_index, trajectory.final_obs, strict=True):
                if index < rows * num_envs:
                    slot[index // num_envs, index % num_envs] = self._finals
                    finals.append(geometry.newest(final))
                    self._finals += 1
                    self._final_rows.append(self.head + int(index) // num_envs)
        self.head += rows
        while self._final_rows and self._final_rows[0] < self.head - geometry.rows:
            self._final_rows.popleft()
        before = self.made
        self.made = self._replay.due(self.head * num_envs)
        self.due = self.made - before
        piece = Piece(
            frames=geometry.newest(obs),
            actions=trajectory.actions,
            rewards=rewards,
            terminated=trajectory.terminated,
            truncated=trajectory.truncated,
            age=age,
            slot=slot,
        )
        return piece, finals, range(first, self._finals), self._grown()

    def _grown(self) -> int:
        while self.room < len(self._final_rows):
            self.room *= 2
        return self.room

    @staticmethod
    def moved(finals: np.ndarray, room: int, count: int) -> np.ndarray:
        """The final frames of numbers below `count` in an array with more room; each number's
        place is its remainder."""
        larger = np.zeros((room, *finals.shape[1:]), finals.dtype)
        for number in range(max(count - len(finals), 0), count):
            larger[number % room] = finals[number % len(finals)]
        return larger

    def stats(self, size: int) -> dict[str, float]:
        """How full the ring of so many bytes is."""
        rows = min(self.head, self._geometry.rows)
        return {"replay_fill": rows / self._geometry.rows, "replay_mb": size / 2**20}

    def next_row(self, ring: Ring) -> dict[str, np.ndarray]:
        """What lies in the row that the next step will complete."""
        geometry = self._geometry
        place = self.head % geometry.length * geometry.num_envs
        frames = on_host(ring.frames, place, geometry.num_envs)
        return {"frames": frames.copy(), "age": self._age.copy()}

    def state(self) -> dict[str, Any]:
        """JSON-compatible counters."""
        return {"head": self.head, "room": self.room}

    def source(self, ring: Ring) -> RowSource:
        """The rows, to be read where they lie."""
        return _Rows(self._geometry, ring, self.head)

    def saved(
        self, ring: Ring, priorities: dict[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any], RowSource]:
        """What a buffer keeps (`Buffer.state`)."""
        return self.next_row(ring) | priorities, self.state(), self.source(ring)

    def restore(
        self, ring: Ring, arrays: dict[str, np.ndarray], data: dict[str, Any],
        rows: RowSource | None,
    ) -> Ring:  # fmt: skip
        """Take over saved rows, in place, and counters; returns the ring (NumPy)."""
        geometry = self._geometry
        if rows is None:
            raise CheckpointError("it holds no replayed experience.")
        first, end = rows.stored
        self.head, room = int(data["head"]), int(data["room"])
        most = 2 * max(geometry.length * geometry.num_envs, self.room)
        if self.head != end or end - first > geometry.length or room > most:
            raise CheckpointError(
                f"its replay has rows {first} to {end} of {self.head}, and room for {room}; "
                f"there can be {geometry.length} rows, and room for {most}."
            )
        self.room = max(room, self.room)
        self.made = self._replay.due(self.head * geometry.num_envs)
        self._age = np.array(arrays["age"], np.uint8)
        if self._age.shape != (geometry.num_envs,) or self.head < 0:
            raise CheckpointError("its replay was saved with another number of environments.")
        kept: list[np.ndarray] = []
        self._final_rows.clear()
        ring.slot[...] = 0
        while first < end:
            stop = min(first + 4096, end)
            block = rows.read(first, stop)
            place = np.arange(first, stop) % geometry.length
            for name in STORED:
                array = getattr(ring, name)
                shaped = array.reshape(geometry.length, geometry.num_envs, *array.shape[1:])
                shaped[place] = block[name]
            for (t, env), final in zip(
                np.argwhere(block["truncated"]), block["finals"], strict=True
            ):
                if first + t >= self.head - geometry.rows:
                    ring.slot[place[t] * geometry.num_envs + env] = len(kept)
                    self._final_rows.append(first + int(t))
                    kept.append(final)
            first = stop
        self._finals = len(kept)
        finals = np.zeros((self._grown(), *geometry.frame), ring.finals.dtype)
        for number, final in enumerate(kept):
            finals[number] = final
        place = self.head % geometry.length * geometry.num_envs
        ring.frames[place : place + geometry.num_envs] = arrays["frames"]
        ring.age[place : place + geometry.num_envs] = arrays["age"]
        return ring._replace(finals=finals)

    def truncate(self, ring: Ring, env: int, final_obs: np.ndarray, first_obs: np.ndarray) -> Ring:
        """The environment's newest step ended its episode; the next begins with `first_obs`."""
        self._age[env] = 0
        place = self.head % self._geometry.length * self._geometry.num_envs + env
        ring.age[place] = 0
        ring.frames[place] = self._geometry.newest(first_obs)
        if not self.head:
            return ring
        last = (self.head - 1) % self._geometry.length * self._geometry.num_envs + env
        if ring.terminated[last] or ring.truncated[last]:
            return ring
        ring.truncated[last] = True
        ring.slot[last] = self._finals
        self._finals += 1
        self._final_rows.append(self.head - 1)
        if self._grown() > len(ring.finals):
            ring = ring._replace(finals=self.moved(ring.finals, self.room, self._finals - 1))
        ring.finals[(self._finals - 1) % len(ring.finals)] = self._geometry.newest(final_obs)
        return ring


class _Rows:
    """A ring's rows by number."""

    def __init__(self, geometry: Geometry, ring: Ring, head: int) -> None:
        self._geometry, self._ring, self._head = geometry, ring, head

    @property
    def stored(self) -> tuple[int, int]:
        older = self._geometry.spec.stack - 1
        return max(self._head - self._geometry.rows - older, 0), self._head

    def read(self, first: int, end: int) -> dict[str, np.ndarray]:
        geometry = self._geometry
        length, num_envs = geometry.length, geometry.num_envs
        start, rows = first % length, end - first
        until = min(start + rows, length)  # the ring may go on at its beginning
        pieces = [(start, until - start), (0, rows - (until - start))]
        block: dict[str, np.ndarray] = {}
        for name in (*STORED, "slot"):
            array = getattr(self._ring, name)
            found = [on_host(array, at * num_envs, size * num_envs) for at, size in pieces if size]
            block[name] = np.concatenate(found).reshape(rows, num_envs, *array.shape[1:])
        numbers = block.pop("slot")[block["truncated"]]
        finals = self._ring.finals
        block["finals"] = on_host(finals, 0, len(finals))[numbers % len(finals)]
        return block


def on_host(array: Any, start: int, size: int) -> np.ndarray:
    """Some entries of an array in host memory, without moving all of it there."""
    if hasattr(array, "rows"):  # one part's of several
        return array.rows(start, size)
    if isinstance(array, np.ndarray) or next(iter(array.devices())).platform == "cpu":
        return np.asarray(array)[start : start + size]
    import jax

    return np.asarray(jax.lax.dynamic_slice_in_dim(array, start, size))
