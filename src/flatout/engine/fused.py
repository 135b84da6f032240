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

from flatout.algorithms.base import shapes_of
from flatout.engine.device import DeviceSampler, ended, infos, side_by_side, where_ended
from flatout.engine.loop import Chunk, ChunkOutput, ChunkResult, Loop, MemberSlice, PrefetchedChunk
from flatout.engine.members import FusedPopulation
from flatout.engine.memory import size_mb
from flatout.engine.programs import Programs
from flatout.engine.schedule import Schedule
from flatout.engine.state import RunState
from flatout.errors import CheckpointError
from flatout.types import Episodes, Metrics, Snapshot

CHUNK_S = 0.5
"""The seconds that a chunk may take."""

ROWS_S = 0.05
"""A chunk may have more iterations than requested, up to this many seconds, while the caller will
not read the state: the host's work for a chunk costs as much as an iteration of a small network."""

AHEAD_S, MOST_AHEAD_MB = 0.1, 64
"""A chunk is started before the host has read the previous chunk if it takes less than `AHEAD_S`
seconds, and if the replay takes less than `MOST_AHEAD_MB`: each chunk in flight has a copy of
it."""

AHEAD = 2
"""Chunks in flight in addition to the one being read: one runs, the next starts when it ends."""

GROWTH = 8
"""A chunk has at most this many times the iterations of the last one that was timed."""


class FusedSchedule(Schedule):
    """A schedule that makes iterations in chunks of up to half a second, each in one dispatch.

    The compiled loop receives its length at run time, so all chunks run the same program, and their
    lengths change no bit of the results. If the state is read within a chunk, the chunk's first
    iterations are computed again.

    For the arguments see `Schedule`. The sampler is compiled only as part of the loop.
    """

    _sampler: DeviceSampler

    def __init__(self, *flow: Any, programs: Programs) -> None:
        super().__init__(*flow)
        self._programs = programs
        self._together: FusedPopulation | None = programs.together
        self.loop = Loop(self.learner, self._sampler, programs)
        self._program: Any = None
        self._out_buffers: deque[Any] = deque()  # free output buffers
        self._ahead: deque[PrefetchedChunk] = deque()
        self._asked = 1  # iterations requested by the last `advance`
        self._inspect_at = 0  # the iteration up to which the caller will not read the state
        self._thread = ThreadPoolExecutor(1, "chunks")
        self._stored = shapes_of(self.learner.buffer.store())
        self._runs_ahead = size_mb(self._stored) < MOST_AHEAD_MB
        self._rows = self._sampler.rollout.spec.horizon
        self._chunk: Chunk | None = None
        self._each_s = CHUNK_S  # measured seconds of an iteration
        self._last = 0  # iterations of the newest chunk
        self._inspect_interval = 0  # iterations between the last two reads of the state
        self._since_inspection = 0  # iterations since the last read of the state

    def compile(self) -> Any:
        """Compile the program, or use that of another run of the same shape. The program of several
        members is compiled when their first chunk is dispatched."""
        if self._together is None:
            self._program = self._programs.get("fused", self.loop.compiled)
        return self._program

    def advance(self, n: int, inspect_after: int = 0) -> Iterator[Metrics]:
        self._asked, self._inspect_at, chunk = n, self._version + inspect_after, self._chunk
        if chunk is not None and (chunk.consumed == chunk.count or self._together is not None):
            self._settled()
        while n > 0:
            chunk = self._chunk
            if chunk is None or chunk.consumed == chunk.count:
                chunk = self._dispatch(self._length(n, self._version))
            while n > 0 and chunk.consumed < chunk.count:
                self._check(chunk, chunk.consumed)  # what fails here is not part of the state
                n -= 1
                chunk.consumed += 1
                self._version += 1
                self._since_inspection += 1
                yield self._iteration_metrics(chunk, chunk.consumed - 1)
                if self._chunk is not chunk:  # the caller has read the state
                    self._inspect_interval, self._since_inspection = self._since_inspection, 0
                    break

    def chunks(self) -> Iterator[int]:
        """Yield the environment steps of one whole chunk after another, for a caller that measures
        time: the time of an iteration within a chunk is unknown."""
        steps = 0
        for metrics in self.advance(1 << 40):
            steps += metrics.steps
            if self._chunk is not None and self._chunk.consumed == self._chunk.count:
                yield steps
                steps = 0

    def idle(self) -> None:
        """Discard chunks that were started in advance; afterwards none is in flight."""
        self._pop_ahead(None, 0)

    def _length(self, asked: int, first: int) -> int:
        """Return the length of the chunk from iteration `first` on; `asked` were requested."""
        each_s = max(self._each_s, 1e-9)
        # The state is probably read at equal intervals; a chunk beyond a read is computed twice.
        interval, since = self._inspect_interval, self._since_inspection
        free = self.loop.max_iterations
        if interval:
            free = interval - since if since < interval else since
        if self._together is None:
            asked = max(asked, min(int(ROWS_S / each_s), self._inspect_at - first))
        most = min(int(CHUNK_S / each_s), GROWTH * self._last, self.loop.max_iterations, free)
        return max(min(asked, most), 1)

    def _dispatch(self, count: int) -> Chunk:
        """Compute a chunk of `count` iterations, or use one that was started in advance. An
        interrupt discards the chunk."""
        before = self._state
        with self._discardable(), self._spans.span("fused"):
            if self._together is not None:
                begin, compiled = time.perf_counter(), self._together.compile_ns
                before, after, output, count = self._together.run(
                    self._programs.member, self.loop, before, count
                )
                compiling = self._together.compile_ns - compiled
                if compiling:
                    self._spans.add("compile", compiling)
                took = time.perf_counter() - begin - compiling / 1e9
            else:
                assert isinstance(before, RunState)
                ahead = self._pop_ahead(before, count)
                result = self._call(before, count) if ahead is None else ahead.future.result()
                count = count if ahead is None else ahead.length
                after, took = result.after, result.took
                output = self._read(result.out_buffer, count)
            self._each_s, self._last = took / count, count
        self._state = after
        if self._together is None and self._runs_ahead and took < AHEAD_S:
            self._begin_ahead(after, count)
        ends = output.ends
        iterations = where_ended(ends)[0]
        places = np.searchsorted(iterations, np.arange(count + 1))
        self._chunk = Chunk(before, count, output, ended(ends), places, infos(ends))
        return self._chunk

    def _begin_ahead(self, state: RunState, count: int) -> None:
        """Start the chunks that will probably be requested after that of `count` iterations."""
        first = self._version + count + sum(ahead.length for ahead in self._ahead)
        while len(self._ahead) < AHEAD:
            after = self._ahead[-1].future if self._ahead else state
            length = self._length(self._asked, first)
            result = self._thread.submit(self._call, after, length)
            self._ahead.append(PrefetchedChunk(after, length, result))
            first += length

    def _pop_ahead(self, before: Any, count: int) -> PrefetchedChunk | None:
        """Return the next chunk started in advance if it continues from `before` and fits the
        request; else discard all of them and return None."""
        if not self._ahead:
            return None
        ahead = self._ahead[0]
        if ahead.before is before and (ahead.length <= count or not self._inspect_interval):
            return self._ahead.popleft()  # iterations beyond the count are for the next `advance`
        while self._ahead:  # they cannot be stopped, and their buffers are needed
            self._out_buffers.append(self._ahead.popleft().future.result().out_buffer)
        return None

    def _check(self, chunk: Chunk, number: int) -> None:
        """Refuse what the environments gave in one of a chunk's iterations, if it is invalid."""
        ends, stuck = chunk.output.ends, chunk.output.ends.stuck
        self._sampler.check(
            ends.finite[number], None if stuck is None else stuck[number], ends.early[number]
        )

    def _iteration_metrics(self, chunk: Chunk, number: int) -> Metrics:
        """Return the metrics of one of a chunk's iterations."""
        output, learner = chunk.output, self.learner
        values = learner.metrics([output.scalars[number]], lambda: self._settled().learned)
        # The members of one program share the counters that metrics need.
        before = chunk.before.whole if isinstance(chunk.before, MemberSlice) else chunk.before
        rows = self._rows * chunk.consumed
        values |= learner.buffer.stats(self._stored, before.counts, rows)
        updates = round(values.pop("updates"))
        if not updates:  # there are no averages
            values = {name: values[name] for name in values if name in self._always}
        mine = slice(chunk.places[number], chunk.places[number + 1])
        episodes = Episodes(*(array[mine] for array in chunk.episodes))
        return Metrics(int(output.steps[number]), updates, episodes, values, chunk.infos[mine])

    @property
    def state(self) -> RunState:
        state = self._settled()
        return state.extract() if isinstance(state, MemberSlice) else state

    def _settled(self) -> RunState | MemberSlice:
        """Return the state, or a member's view, after the last iteration consumed. If that is
        within a chunk, the chunk's first iterations are computed again."""
        chunk = self._chunk
        if chunk is not None and chunk.consumed < chunk.count:
            with self._spans.span("fused"):
                self._pop_ahead(chunk.before, 0)
                self._state = self._replay_first(chunk)
        self._chunk = None  # only now: an interrupt meanwhile leaves the chunk to be settled
        return self._state

    def _replay_first(self, chunk: Chunk) -> RunState:
        """Compute a chunk's consumed iterations again, and return the state after them."""
        if isinstance(chunk.before, MemberSlice):
            assert self._together is not None
            return self._together.rerun(self.loop, chunk.before, chunk.consumed)
        result = self._call(chunk.before, chunk.consumed)
        self._out_buffers.append(result.out_buffer)
        return result.after

    def _call(self, after: RunState | Future[ChunkResult], count: int) -> ChunkResult:
        """Run the program for `count` iterations, from a state or after a chunk in flight."""
        before = after.result().after if isinstance(after, Future) else after
        try:
            out_buffer = self._out_buffers.popleft()
        except IndexError:
            out_buffer = self.loop.empty()
        begin = time.perf_counter()
        state, out_buffer = self._program(before, out_buffer, np.int32(count), *self.loop.keys)
        jax.block_until_ready(out_buffer)
        return ChunkResult(state, out_buffer, time.perf_counter() - begin)

    def _read(self, out_buffer: ChunkOutput, count: int) -> ChunkOutput:
        """Copy a chunk's outputs to the host, and free their buffer for a later chunk."""
        scalars, steps = (np.array(np.asarray(leaf)[:count]) for leaf in out_buffer[:2])
        axis = int(self.learner.mesh.shards > 1)
        ends = jax.tree.map(
            lambda leaf: np.array(np.asarray(leaf)[(slice(None),) * axis + (slice(count),)]),
            out_buffer.ends,
        )
        self._out_buffers.append(out_buffer)
        return ChunkOutput(scalars, steps, side_by_side(ends) if axis else ends)

    @property
    def params(self) -> tuple[Any, ...]:
        return self.learner.publish(self._settled().learned)

    def _continue_from(self, state: RunState) -> None:
        """See `Schedule`. Nothing is published: the program acts with its own state."""
        self._state, self._chunk = self.loop.placed(state), None
        self._stored = shapes_of(state.store)

    def restore(self, snapshot: Snapshot) -> list[str]:
        notes = super().restore(snapshot)
        if self._pending:
            raise CheckpointError(
                "it contains a trajectory that was not learned from yet: resume it with "
                "schedule=overlapped."
            )
        return notes

    def close(self) -> None:
        self._thread.shutdown()
        super().close()
