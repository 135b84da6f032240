"""The counters of a replay ring, and how the ring is written, saved by row, and restored.

Host replay and device replay call it, with the counters in `RunState.counts`; they differ only in
where the ring's arrays are.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import jax
import numpy as np

from flatout import tree
from flatout.algorithms.base import ReplaySpec
from flatout.engine.buffer import Arrays, Data, Saved
from flatout.engine.finals import capacity, used_finals
from flatout.engine.replay.hindsight import EpisodeEnds
from flatout.engine.replay.ring import STEP, Ring, RingLayout, RolloutRows, final_ids, next_age
from flatout.engine.trajectory import join_envs
from flatout.errors import CheckpointError
from flatout.frames import MAX_AGE
from flatout.storage.checkpoint import refuse_other
from flatout.storage.segments import FINALS
from flatout.types import Obs, RowSource, Trajectory

STORED = ("frames", *STEP, "age")
"""The arrays of a ring that are saved for each row, in addition to final observations."""


class RingCounters:
    """The counters of a ring: rows, updates and final observations.

    Args:
        layout: the ring's sizes.
        replay: the algorithm's requirements.
        final_capacity: the initial capacity for final observations; at least N is used.

    Attributes:
        rows_written: the number of rows ever stored, which is the number of the next row.
        updates_done: all updates that `rows_written` rows make due. `updates_due` is part of it.
        updates_due: updates that the newest trajectory makes due.
        finals: the number of the next final observation. After a restore, the final observations
            in the ring are numbered from 0 again.
        final_capacity: F, the capacity that `Ring.finals` must have.
        age: uint8 ``[N]``, the ages of the newest observations.
        ends: the ends of episodes, for hindsight; else None.
    """

    def __init__(self, layout: RingLayout, replay: ReplaySpec, final_capacity: int = 0) -> None:
        self._layout = layout
        self._replay = replay
        self.rows_written = 0
        self.updates_done = 0
        self.updates_due = 0
        self.age = np.zeros((layout.num_envs,), np.uint8)
        self.ends = EpisodeEnds(layout) if replay.hindsight else None
        self.finals = 0
        self._final_rows: deque[int] = deque()  # the rows whose final observations are still needed
        self.final_capacity = max(final_capacity, layout.num_envs)

    def ingest(self, trajectory: Trajectory) -> tuple[RolloutRows, Obs, np.ndarray]:
        """Count a trajectory. Return the rows to write, the final frames ``[n, ...]`` and their
        numbers ``[n]``."""
        layout = self._layout
        rewards, ended = trajectory.rewards, trajectory.ended
        rows, num_envs = rewards.shape
        obs = tree.map(
            lambda leaf, last: np.concatenate([leaf[len(leaf) - rows :], last[None]]),
            trajectory.obs, trajectory.last_obs,
        )  # fmt: skip
        age = np.empty((rows + 1, num_envs), np.uint8)
        age[0] = self.age
        for t in range(rows):
            age[t + 1] = next_age(np, age[t], ended[t])
        self.age = age[rows].copy()
        final_id = np.zeros((rows, num_envs), np.int32)
        finals, numbers = tree.take(trajectory.finals.obs, slice(0)), np.zeros(0, np.int64)
        if trajectory.truncated.any():
            final_id = final_ids(np, self.finals, trajectory.truncated)
            index, finals = used_finals(trajectory.finals, rows * num_envs)
            numbers = final_id.reshape(-1)[index]
            self.finals += len(index)
            self._final_rows.extend((self.rows_written + index // num_envs).tolist())
        if self.ends is not None:
            self.ends.add(self.rows_written, ended)
        self.rows_written += rows
        while self._final_rows and self._final_rows[0] < self.rows_written - layout.rows:
            self._final_rows.popleft()
        before = self.updates_done
        self.updates_done = self._replay.updates_due(self.rows_written * num_envs)
        self.updates_due = self.updates_done - before
        piece = RolloutRows(
            frames=layout.newest(obs),
            actions=trajectory.actions,
            rewards=rewards,
            terminated=trajectory.terminated,
            truncated=trajectory.truncated,
            age=age,
            final_id=final_id,
        )
        self.final_capacity = capacity(len(self._final_rows), self.final_capacity)
        return piece, layout.newest(finals), numbers

    def set_counters(self, rows_written: int, finals: int, age: np.ndarray) -> None:
        """Set the counters to those of a compiled loop: `rows_written`, `finals` and `age`."""
        self.rows_written, self.finals, self.age = rows_written, finals, age
        self.updates_done = self._replay.updates_due(rows_written * self._layout.num_envs)

    def write(self, ring: Ring, trajectory: Trajectory) -> tuple[Ring, RolloutRows]:
        """Call `ingest` and write the rows into a ring of NumPy arrays, in place. If it must
        hold more final observations, the returned ring has a new, larger array `finals`."""
        rows_written, before = self.rows_written, self.finals
        piece, finals, numbers = self.ingest(trajectory)
        ring = self._ensure_capacity(ring, before)
        start = rows_written % self._layout.length * self._layout.num_envs

        def write(array: np.ndarray, new: np.ndarray) -> None:
            entries, until = new.reshape(-1, *array.shape[1:]), len(array) - start
            array[start : start + len(entries)] = entries[:until]
            if len(entries) > until:  # the ring wraps around
                array[: len(entries) - until] = entries[until:]

        for stored, new in zip(ring, piece, strict=False):  # all but the final observations
            tree.map(write, stored, new)
        if len(numbers):
            tree.put(ring.finals, numbers % len(tree.first(ring.finals)), finals)
        return ring, piece

    def _ensure_capacity(self, ring: Ring, count: int) -> Ring:
        """Return the ring with capacity `final_capacity`; `count` is the number of the next final
        frame."""
        if self.final_capacity <= len(tree.first(ring.finals)):
            return ring
        return ring._replace(finals=self.grow_finals(ring.finals, self.final_capacity, count))

    @staticmethod
    def grow_finals(finals: Obs, new_capacity: int, count: int) -> Obs:
        """Copy the final frames before number `count` into arrays with the larger capacity
        `new_capacity`. Frame k moves from position ``k % len(finals)`` to ``k % new_capacity``."""

        def grow(finals: np.ndarray) -> np.ndarray:
            larger = np.zeros((new_capacity, *finals.shape[1:]), finals.dtype)
            for number in range(max(count - len(finals), 0), count):
                larger[number % new_capacity] = finals[number % len(finals)]
            return larger

        return tree.map(grow, finals)

    def saved(self, ring: Ring, layout: RingLayout | None = None) -> Saved:
        """Return the result of `Buffer.saved`: the newest frames and ages, counters, and the rows.

        Args:
            ring: its arrays, with a leading axis if it has shards. Rows are not copied.
            layout: the sizes of one shard's ring if it has shards.
        """
        rows = RingRows(layout or self._layout, ring, self.rows_written)
        frames = tree.map(np.copy, rows.row("frames", self.rows_written))
        arrays = tree.named("frames", frames) | {"age": self.age.copy()}
        return arrays, {"head": self.rows_written, "room": self.final_capacity}, rows

    def restore(self, ring: Ring, arrays: Arrays, data: Data, rows: RowSource | None) -> Ring:
        """Restore saved counters, and saved rows into a ring of NumPy arrays. All arrays but
        `finals` are changed in place. Raise a `CheckpointError` if they do not fit.

        If a smaller ring was saved that had dropped rows, the others are numbered from 0.
        """
        layout = self._layout
        if rows is None:
            raise CheckpointError("it holds no replayed experience.")
        first, end = rows.stored
        head, room = int(data["head"]), int(data["room"])
        most = 2 * max(layout.length * layout.num_envs, self.final_capacity)
        if head != end or end - first > layout.length or room > most:
            raise CheckpointError(
                f"its replay has rows {first} to {end} of {head} and space for {room} "
                f"final observations; it can have {layout.length} rows and space for {most}."
            )
        if head < 0:
            raise CheckpointError(f"its replay has {head} rows.")
        refuse_other("buffer/age", arrays["age"], self.age, "this number of environments")
        self.age = np.array(arrays["age"])
        older, dropped = layout.depth - 1, 0
        if first and layout.rows > end - first - older:
            # A smaller ring has dropped rows that this one would sample: count from those it has.
            first = dropped = min(first + older, end)
            self.age = np.minimum(self.age, min(end - dropped, MAX_AGE)).astype(np.uint8)
        self.rows_written = end - dropped
        self.final_capacity = max(room, self.final_capacity)
        self.updates_done = self._replay.updates_due(self.rows_written * layout.num_envs)
        kept: list[Obs] = []
        oldest = first - dropped
        self._final_rows.clear()
        ring.final_id[...] = 0
        while first < end:
            stop = min(first + 4096, end)
            block = rows.read(first, stop)
            number = np.arange(first, stop) - dropped
            place = number % layout.length
            for name in STORED:
                stored = getattr(ring, name)
                for path, array in tree.items(stored):
                    shaped = array.reshape(layout.length, layout.num_envs, *array.shape[1:])
                    shaped[place] = block[tree.joined(name, path)]
            if dropped:  # stacks do not reach back to frames that are gone
                ages = ring.age.reshape(layout.length, -1)
                ages[place] = np.minimum(ages[place], number[:, None])
            finals = tree.unnamed(FINALS, layout.spec, block)
            for at, (t, env) in enumerate(np.argwhere(block["truncated"])):
                if number[t] >= self.rows_written - layout.rows:
                    ring.final_id[place[t] * layout.num_envs + env] = len(kept)
                    self._final_rows.append(int(number[t]))
                    kept.append(tree.take(finals, at))
            first = stop
        if self.ends is not None:
            place = np.arange(oldest, self.rows_written) % layout.length
            flags = (ring.terminated, ring.truncated)
            terminated, ended = (flag.reshape(layout.length, -1)[place] for flag in flags)
            if (terminated & ~ended).any():
                raise CheckpointError(
                    "its replay was stored without --hindsight, and lacks the last observations of "
                    "episodes that were terminated."
                )
            self.ends.restore(oldest, ended)
        self.finals = len(kept)
        self.final_capacity = capacity(self.finals, self.final_capacity)
        finals = tree.zeros(layout.frames, self.final_capacity)
        for number, final in enumerate(kept):
            tree.put(finals, number, final)
        place = self.rows_written % layout.length * layout.num_envs
        newest = tree.unnamed("frames", layout.spec, arrays)
        tree.put(ring.frames, slice(place, place + layout.num_envs), newest)
        ring.age[place : place + layout.num_envs] = self.age
        return ring._replace(finals=finals)

    def truncate(self, ring: Ring, env: int, last_obs: Obs, first_obs: Obs) -> Ring:
        """See `Buffer.truncate`. The ring's arrays are NumPy arrays, changed in place."""
        self.age[env] = 0
        place = self.rows_written % self._layout.length * self._layout.num_envs + env
        ring.age[place] = 0
        tree.put(ring.frames, place, self._layout.newest(first_obs))
        if not self.rows_written:
            return ring
        last = (self.rows_written - 1) % self._layout.length * self._layout.num_envs + env
        if ring.terminated[last] or ring.truncated[last]:
            return ring
        ring.truncated[last] = True
        if self.ends is not None:
            self.ends.cut(env, self.rows_written - 1)
        ring.final_id[last] = self.finals
        self._final_rows.append(self.rows_written - 1)
        self.final_capacity = capacity(len(self._final_rows), self.final_capacity)
        ring = self._ensure_capacity(ring, self.finals)
        number = self.finals % len(tree.first(ring.finals))
        tree.put(ring.finals, number, self._layout.newest(last_obs))
        self.finals += 1
        return ring


class RingRows:
    """A `RowSource` of a ring's rows. Each row has the environments of all shards, in order.

    Args:
        layout: the sizes of the ring, or of each shard's ring.
        ring: the arrays, NumPy or JAX, with a leading axis of shards if there are shards.
        rows_written: the number of rows ever stored.
    """

    def __init__(self, layout: RingLayout, ring: Ring, rows_written: int) -> None:
        self._layout, self._ring, self._head = layout, ring, rows_written
        self._shards = ring.rewards.ndim - 1  # the number of axes of shards: 0 or 1

    @property
    def stored(self) -> tuple[int, int]:
        older = self._layout.depth - 1
        return max(self._head - self._layout.rows - older, 0), self._head

    def row(self, name: str, number: int) -> Any:
        """Return one row ``[N, ...]`` of the field `name` of `Ring`."""
        arrays = getattr(self._ring, name)
        return tree.map(lambda a: self._rows(a, number % self._layout.length, 1)[0], arrays)

    def read(self, first: int, end: int) -> dict[str, np.ndarray]:
        start, rows = first % self._layout.length, end - first
        until = min(start + rows, self._layout.length)  # the rows may wrap around the ring's end
        pieces = [(start, until - start), (0, rows - (until - start))]
        block = {
            tree.joined(name, path): np.concatenate(
                [self._rows(array, at, size) for at, size in pieces if size]
            )
            for name in (*STORED, "final_id")
            for path, array in tree.items(getattr(self._ring, name))
        }
        numbers = block.pop("final_id")[block["truncated"]]

        def finals(array: Any) -> np.ndarray:
            found = on_host(array, 0, array.shape[self._shards])
            found = found[0] if self._shards else found
            return found[numbers % len(found)]

        return block | tree.named(FINALS, tree.map(finals, self._ring.finals))

    def _rows(self, array: Any, start: int, rows: int) -> np.ndarray:
        """Return rows ``[rows, N, ...]`` of an array from position `start` on; they must not wrap
        around."""
        num_envs = self._layout.num_envs
        array = on_host(array, start * num_envs, rows * num_envs, self._shards)
        if not self._shards:
            return array.reshape(rows, num_envs, *array.shape[1:])
        return join_envs(array.reshape(len(array), rows, num_envs, *array.shape[2:]), 1)


def on_host(array: Any, start: int, size: int, axis: int = 0) -> np.ndarray:
    """Return `size` entries of an array from `start` on, in host memory: a view of a NumPy array,
    else a copy.

    Args:
        axis: the axis of the entries: 0, or 1 if axis 0 is shards.
    """
    where = (slice(None),) * axis + (slice(start, start + size),)
    if isinstance(array, np.ndarray):
        return array[where]
    pieces = sorted(array.addressable_shards, key=lambda piece: piece.index[0].start or 0)
    read = [
        np.asarray(piece.data)[where]
        if piece.device.platform == "cpu"
        else np.asarray(jax.lax.dynamic_slice_in_dim(piece.data, start, size, axis))
        for piece in pieces
    ]
    return np.concatenate(read) if axis else read[0]
