"""The counters of a replay ring, and how the ring is written, saved and restored.

Host replay and device replay call it. Both keep the same ledger on the host; they differ only in
where the ring's arrays are.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from flatout.algorithms.base import ReplaySpec
from flatout.buffers.base import Arrays, Data, Saved
from flatout.buffers.finals import capacity, used
from flatout.buffers.ring import Geometry, Piece, Ring, next_age, slots
from flatout.buffers.rows import STORED, RingRows
from flatout.errors import CheckpointError
from flatout.storage.checkpoint import refuse_other
from flatout.types import Array, RowSource, Trajectory


class Ledger:
    """The counters of a ring: rows, updates and final observations.

    Args:
        geometry: the ring's sizes.
        replay: the algorithm's requirements.
        room: the initial capacity for final observations; at least N is used.

    Attributes:
        head: rows ever ingested; the number of the next row.
        made: updates that `head` rows make due in total, including `due`.
        due: updates that the newest trajectory makes due.
        finals: the number of the next final observation. A restored ring numbers the final
            observations that it still has from 0.
        room: F, the capacity that `Ring.finals` must have.
        age: uint8 ``[N]``, the ages of the newest observations.
    """

    def __init__(self, geometry: Geometry, replay: ReplaySpec, room: int = 0) -> None:
        self._geometry = geometry
        self._replay = replay
        self.head = 0
        self.made = 0
        self.due = 0
        self.age = np.zeros((geometry.num_envs,), np.uint8)
        self.finals = 0
        self._final_rows: deque[int] = deque()  # the rows whose final observations are still needed
        self.room = max(room, geometry.num_envs)

    def ingest(self, trajectory: Trajectory) -> tuple[Piece, np.ndarray, np.ndarray]:
        """Count a trajectory. Return the rows to write, the final frames ``[n, ...]`` and their
        numbers ``[n]``."""
        geometry = self._geometry
        rewards, ended = trajectory.rewards, trajectory.ended
        rows, num_envs = rewards.shape
        obs = np.concatenate([trajectory.obs, trajectory.last_obs[None]])
        age = np.empty((rows + 1, num_envs), np.uint8)
        age[0] = self.age
        for t in range(rows):
            age[t + 1] = next_age(np, age[t], ended[t])
        self.age = age[rows].copy()
        slot = np.zeros((rows, num_envs), np.int32)
        finals, numbers = trajectory.finals.obs[:0], np.zeros(0, np.int64)
        if trajectory.truncated.any():
            slot = slots(np, self.finals, trajectory.truncated)
            index, finals = used(trajectory.finals, rows * num_envs)
            numbers = slot.reshape(-1)[index]
            self.finals += len(index)
            self._final_rows.extend((self.head + index // num_envs).tolist())
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
        self.room = capacity(len(self._final_rows), self.room)
        return piece, geometry.newest(finals), numbers

    def take(self, head: int, finals: int, age: np.ndarray) -> None:
        """Set the counters to those of a compiled loop: `head`, `finals` and `age`."""
        self.head, self.finals, self.age = head, finals, age
        self.made = self._replay.due(head * self._geometry.num_envs)

    def write(self, ring: Ring, trajectory: Trajectory) -> tuple[Ring, Piece]:
        """Call `ingest` and write the rows into a ring of NumPy arrays, in place. Only `finals` is
        a new array in the returned ring if it needs a larger capacity."""
        head, before = self.head, self.finals
        piece, finals, numbers = self.ingest(trajectory)
        ring = self._ensure_room(ring, before)
        start = head % self._geometry.length * self._geometry.num_envs
        for array, new in zip(ring, piece, strict=False):  # all but the final observations
            entries, until = new.reshape(-1, *array.shape[1:]), len(array) - start
            array[start : start + len(entries)] = entries[:until]
            if len(entries) > until:  # the ring wraps around
                array[: len(entries) - until] = entries[until:]
        if len(numbers):
            ring.finals[numbers % len(ring.finals)] = finals
        return ring, piece

    def _ensure_room(self, ring: Ring, count: int) -> Ring:
        """Return the ring with capacity `room`; `count` is the number of the next final frame."""
        if self.room <= len(ring.finals):
            return ring
        return ring._replace(finals=self.moved(ring.finals, self.room, count))

    @staticmethod
    def moved(finals: np.ndarray, room: int, count: int) -> np.ndarray:
        """Copy the final frames before number `count` into an array with the larger capacity
        `room`. Frame k moves from position ``k % len(finals)`` to ``k % room``."""
        larger = np.zeros((room, *finals.shape[1:]), finals.dtype)
        for number in range(max(count - len(finals), 0), count):
            larger[number % room] = finals[number % len(finals)]
        return larger

    def stats(self, size: int) -> dict[str, float]:
        """Return the metrics of a ring of `size` bytes: its share of used rows, and its MiB."""
        rows = min(self.head, self._geometry.rows)
        return {"replay_fill": rows / self._geometry.rows, "replay_mb": size / 2**20}

    def saved(self, ring: Ring, geometry: Geometry | None = None) -> Saved:
        """Return the result of `Buffer.state`: the newest frames and ages, counters, and the rows.

        Args:
            ring: its arrays, with a leading axis if it has shards. Rows are not copied.
            geometry: the sizes of one shard's ring if it has shards.
        """
        rows = RingRows(geometry or self._geometry, ring, self.head)
        arrays = {"frames": rows.row("frames", self.head).copy(), "age": self.age.copy()}
        return arrays, {"head": self.head, "room": self.room}, rows

    def restore(self, ring: Ring, arrays: Arrays, data: Data, rows: RowSource | None) -> Ring:
        """Restore saved counters, and saved rows into a ring of NumPy arrays. All arrays but
        `finals` are changed in place. Raise a `CheckpointError` if they do not fit."""
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
        if self.head < 0:
            raise CheckpointError(f"its replay has {self.head} rows.")
        refuse_other("buffer/age", arrays["age"], self.age, "this number of environments")
        self.age = np.array(arrays["age"])
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
        self.finals = len(kept)
        self.room = capacity(self.finals, self.room)
        finals = np.zeros((self.room, *geometry.frame), ring.finals.dtype)
        for number, final in enumerate(kept):
            finals[number] = final
        place = self.head % geometry.length * geometry.num_envs
        ring.frames[place : place + geometry.num_envs] = arrays["frames"]
        ring.age[place : place + geometry.num_envs] = arrays["age"]
        return ring._replace(finals=finals)

    def truncate(self, ring: Ring, env: int, last_obs: Array, first_obs: Array) -> Ring:
        """See `Buffer.truncate`. The ring's arrays are NumPy arrays, changed in place."""
        self.age[env] = 0
        place = self.head % self._geometry.length * self._geometry.num_envs + env
        ring.age[place] = 0
        ring.frames[place] = self._geometry.newest(first_obs)
        if not self.head:
            return ring
        last = (self.head - 1) % self._geometry.length * self._geometry.num_envs + env
        if ring.terminated[last] or ring.truncated[last]:
            return ring
        ring.truncated[last] = True
        ring.slot[last] = self.finals
        self._final_rows.append(self.head - 1)
        self.room = capacity(len(self._final_rows), self.room)
        ring = self._ensure_room(ring, self.finals)
        ring.finals[self.finals % len(ring.finals)] = self._geometry.newest(last_obs)
        self.finals += 1
        return ring
