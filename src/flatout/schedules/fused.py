"""Step 2 of the data flow, fused: the host starts chunks of iterations, and one compiled program
acts, steps and learns."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from flatout.errors import CheckpointError
from flatout.learner.memory import size_mb
from flatout.learner.programs import Programs
from flatout.samplers.device import DeviceSampler, ended, infos, side_by_side, where_ended
from flatout.schedules.base import Schedule
from flatout.schedules.chunks import Ahead, Carry, Chunk, Made, Told
from flatout.schedules.loop import Loop
from flatout.schedules.members import Part
from flatout.types import Episodes, Metrics, Snapshot

CHUNK_S = 0.5
"""Seconds that a chunk should take."""

ROWS_S = 0.05
"""Seconds that a chunk may take beyond what is asked for, where nobody looks at the state: what
the host does for each chunk costs as much as an iteration of a small network."""

AHEAD_S, MOST_AHEAD_MB = 0.1, 64
"""Chunks that take less are begun before the host has read those before, if their replay takes
less: each has one of its own."""

AHEAD = 2
"""Chunks under way beside the one that is read: one runs and the next waits for nobody."""

GROWTH = 8
"""A chunk is at most so many times as long as the one before: the first tell how long they take."""


class FusedSchedule(Schedule):
    """Iterations in chunks: as many as about half a second takes, never across what is due.

    A loop whose length is given at run time makes them, so that no chunk changes the program, nor
    the bits. Who stops within a chunk has its first iterations made once more.

    Arguments as of `Schedule`; the sampler is compiled only here.
    """

    _sampler: DeviceSampler

    @property
    def sampler(self) -> DeviceSampler:
        """What plays in the program."""
        return self._sampler

    def __init__(self, *flow: Any, programs: Programs) -> None:
        super().__init__(*flow)
        self._programs, self._together = programs, programs.together
        self.loop = Loop(self.learner, self._sampler, programs)
        self._program: Any = None
        self._rooms: deque[Any] = deque()  # for what the next chunks tell
        self._ahead: deque[Ahead] = deque()
        self._asked = 1  # iterations, by the last `advance`
        self._calm = 0  # the iteration before which nobody looks at the state
        self._thread = ThreadPoolExecutor(1, "chunks")
        self._runs_ahead = size_mb(self.learner.buffer.device_state()) < MOST_AHEAD_MB
        self._rows = self._sampler.rollout.spec.horizon
        self._carry: Carry | Part | None = None  # after the newest chunk, once there was one
        self._chunk: Chunk | None = None
        self._each_s = CHUNK_S  # seconds of an iteration
        self._last = 0  # iterations of the newest chunk
        self._looks = self._unseen = 0  # iterations between two looks at the state, and since one

    def compile(self) -> Any:
        """Compile the program, or take the one that another run of the same shape has compiled;
        one for several members is compiled when they are there."""
        if self._together is None:
            self._program = self._programs.get("fused", self.loop.compiled)
        return self._program

    def advance(self, n: int, calm: int = 0) -> Iterator[Metrics]:
        self._asked, self._calm, chunk = n, self._version + calm, self._chunk
        if chunk is not None and (chunk.taken == chunk.count or self._together is not None):
            self._settle()
        while n > 0:
            chunk = self._chunk
            if chunk is None or chunk.taken == chunk.count:
                chunk = self._dispatched(self._length(n, self._version))
            while n > 0 and chunk.taken < chunk.count:
                n -= 1
                chunk.taken += 1
                self._version += 1
                self._unseen += 1
                yield self._told(chunk, chunk.taken - 1)
                if self._chunk is not chunk:  # a callback looked at the state
                    self._looks, self._unseen = self._unseen, 0
                    break

    def chunks(self) -> Iterator[int]:
        """The environment steps of one whole chunk after another, for who times them: an
        iteration's time is not known within a chunk."""
        steps = 0
        for metrics in self.advance(1 << 40):
            steps += metrics.steps
            if self._chunk is not None and self._chunk.taken == self._chunk.count:
                yield steps
                steps = 0

    def idle(self) -> None:
        """Let go of a chunk that was begun ahead: nothing is under way then."""
        self._taken(None, 0)

    def _length(self, asked: int, first: int) -> int:
        """Iterations of the chunk from iteration `first` on, of which so many are asked for."""
        each_s = max(self._each_s, 1e-9)
        # A callback that looked will look again: what is made beyond that is made twice.
        free = self.loop.most if not self._looks else (
            self._looks - self._unseen if self._unseen < self._looks else self._unseen
        )  # fmt: skip
        if self._together is None:
            asked = max(asked, min(int(ROWS_S / each_s), self._calm - first))
        most = min(int(CHUNK_S / each_s), GROWTH * self._last, self.loop.most, free)
        return max(min(asked, most), 1)

    def _dispatched(self, count: int) -> Chunk:
        """Make a chunk; an interrupt discards it."""
        learner = self.learner
        if self._carry is None:
            self._carry = self.loop.begun()
        before = self._carry
        if isinstance(before, Carry):
            learner.carry(before.leaves, before.store)
        with self._discardable(), self._spans.span("fused"):
            if self._together is not None:
                begin = time.perf_counter()
                before, after, told, count = self._together.run(
                    self._programs.member, self.loop, before, count
                )
                took = time.perf_counter() - begin
            else:
                assert isinstance(before, Carry)
                ahead = self._taken(before, count)
                made = self._called(before, count) if ahead is None else ahead.made.result()
                count = count if ahead is None else ahead.length
                after, took, told = made.after, made.took, self._read(made.room, count)
            self._each_s, self._last = took / count, count
        self._carry = after
        if self._together is None and self._runs_ahead and took < AHEAD_S:
            self._begin_ahead(after, count)
        ends = told.ends
        iterations = where_ended(ends)[0]
        places = np.searchsorted(iterations, np.arange(count + 1))
        self._chunk = Chunk(before, count, told, ended(ends), places, infos(ends))
        return self._chunk

    def _begin_ahead(self, carry: Carry, count: int) -> None:
        """Begin the chunks that will probably be asked for after that of `count` iterations."""
        first = self._version + count + sum(ahead.length for ahead in self._ahead)
        while len(self._ahead) < AHEAD:
            after = self._ahead[-1].made if self._ahead else carry
            length = self._length(self._asked, first)
            made = self._thread.submit(self._called, after, length)
            self._ahead.append(Ahead(after, length, made))
            first += length

    def _taken(self, before: Carry | Part | None, count: int) -> Ahead | None:
        """The chunk that was begun ahead, if it is one that is asked for."""
        if not self._ahead:
            return None
        ahead = self._ahead[0]
        if ahead.before is before and (ahead.length <= count or not self._looks):
            return self._ahead.popleft()  # what is beyond the count is for the next `advance`
        while self._ahead:  # they cannot be stopped, and their rooms are needed
            self._rooms.append(self._ahead.popleft().made.result().room)
        return None

    def _told(self, chunk: Chunk, number: int) -> Metrics:
        """One iteration's metrics."""
        told, learner = chunk.told, self.learner
        self._sampler.check(bool(told.ends.finite[number]))
        if not told.scalars[number][-1]:  # the message names what is not finite
            self._settle()
        learner.buffer.passed(self._rows)
        values = learner.metrics([told.scalars[number]])
        updates = round(values.pop("updates"))
        if not updates:  # no averages
            values = {name: values[name] for name in values if name in self._always}
        mine = slice(chunk.places[number], chunk.places[number + 1])
        episodes = Episodes(*(array[mine] for array in chunk.episodes))
        return Metrics(int(told.steps[number]), updates, episodes, values, chunk.infos[mine])

    def _settle(self) -> None:
        """Take over the state after the last iteration that was taken."""
        chunk = self._chunk
        if chunk is None:
            return
        if chunk.taken < chunk.count:
            with self._spans.span("fused"):
                self._taken(chunk.before, 0)
                self._carry = self._first(chunk)
        carry, self._chunk = self._carry, None
        carry = carry.taken() if isinstance(carry, Part) else carry
        assert carry is not None
        self.learner.carry(carry.leaves, carry.store)
        self.learner.buffer.counted(carry.counts)
        self._sampler.rolling = carry.rolling

    def _first(self, chunk: Chunk) -> Carry:
        """What its first iterations, those that were taken, lead to."""
        if isinstance(chunk.before, Part):
            return self._together.again(self.loop, chunk.before, chunk.taken)
        made = self._called(chunk.before, chunk.taken)
        self._rooms.append(made.room)
        return made.after

    def _called(self, after: Carry | Future[Made], count: int) -> Made:
        """Run the program."""
        before = after.result().after if isinstance(after, Future) else after
        try:
            room = self._rooms.popleft()
        except IndexError:
            room = self.loop.empty()
        begin = time.perf_counter()
        carry, room = self._program(before, room, np.int32(count), *self.loop.keys)
        jax.block_until_ready(room)
        return Made(carry, room, time.perf_counter() - begin)

    def _read(self, room: Told, count: int) -> Told:
        """What a chunk tells, on the host; its room is free then."""
        scalars, steps = (np.array(np.asarray(leaf)[:count]) for leaf in room[:2])
        axis = int(self.learner.mesh.shards > 1)
        ends = jax.tree.map(
            lambda leaf: np.array(np.asarray(leaf)[(slice(None),) * axis + (slice(count),)]),
            room.ends,
        )
        self._rooms.append(room)
        return Told(scalars, steps, side_by_side(ends) if axis else ends)

    @property
    def params(self) -> tuple[Any, ...]:
        self._settle()
        if not self.learner.bundle:
            self.learner.publish()
        return self.learner.bundle

    def adopt(self, initial: Snapshot) -> None:
        super().adopt(initial)
        self._carry = None

    def snapshot(self) -> Snapshot:
        self._settle()
        return super().snapshot()

    def restore(self, snapshot: Snapshot) -> list[str]:
        notes = super().restore(snapshot)
        if self._pending:
            raise CheckpointError(
                "it holds a trajectory that is not learned from yet: resume it with "
                "schedule=overlapped."
            )
        self._carry = self._chunk = None
        return notes

    def close(self) -> None:
        self._thread.shutdown()
        super().close()

    def publish_newest(self) -> None:
        """Nothing: the program acts with its own state."""
