"""Acting, stepping and learning in one program: the host only starts chunks of iterations."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import shapes_of
from flatout.errors import CheckpointError
from flatout.hardware.backend import compiled, product_precision
from flatout.learner.memory import size_mb
from flatout.learner.programs import Programs
from flatout.samplers.device import DeviceSampler, ended, infos, side_by_side
from flatout.schedules.base import Schedule
from flatout.schedules.chunks import TOLD, Ahead, Carry, Chunk, Iteration, Told
from flatout.schedules.together import Part
from flatout.types import Episodes, Metrics, Snapshot

CHUNK_S = 0.5
"""Seconds that a chunk should take."""

AHEAD_S, MOST_AHEAD_MB = 0.1, 64
"""Chunks that take less are begun before the host has read the one before, if their replay takes
less: there are three of it then."""

GROWTH = 8
"""A chunk is at most so many times as long as the one before: the first tell how long they take."""

MOST_KEPT = 1 << 20
"""Environment steps of one chunk, whose ends of episodes are kept until the host reads them."""

MOST = 512
"""Iterations of one chunk."""


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
        # Runs of one shape trace their environments once.
        self._sampler.shapes = programs.get("rolling", lambda: self._sampler.shapes)
        self._program: Any = None
        self._room: Any = None  # for what the next chunk tells
        self._ahead: Ahead | None = None
        self._asked = 1  # iterations, by the last `advance`
        self._thread = ThreadPoolExecutor(1, "chunks")
        self._runs_ahead = size_mb(self.learner.buffer.device_state()) < MOST_AHEAD_MB
        rollout = self._sampler.rollout
        kept = rollout.spec.horizon * rollout.num_envs * self.learner.mesh.shards
        self._most = min(max(MOST_KEPT // kept, 1), MOST)
        self._rows = rollout.spec.horizon
        self._carry: Carry | Part | None = None  # after the newest chunk, once there was one
        self._chunk: Chunk | None = None
        self._each_s = CHUNK_S  # seconds of an iteration
        self._last = 0  # iterations of the newest chunk
        self._looks = self._unseen = 0  # iterations between two looks at the state, and since one

    @property
    def keys(self) -> tuple[Any, ...]:
        """What `made` takes beside the carry and the count: a run's own, which no program holds."""
        learner = self.learner
        return learner.key, learner.buffer.key, self._sampler.act_key, learner.hp

    @property
    def member_axes(self) -> Any:
        """Which of what is carried each member of a population has for itself."""
        return Carry(0, 0, self.learner.buffer.member_counts, 0)  # type: ignore[arg-type]

    def compile(self) -> Any:
        """Compile the program, or take the one that another run of the same shape has compiled;
        one for several members is compiled when they are there."""
        if self._together is None:
            self._program = self._programs.get("fused", lambda: self.compiled(self.iteration))
        return self._program

    def compiled(self, iteration: Iteration, rolling: Any = None) -> Any:
        """Compile a loop over an iteration, or over a part of one: `made` with that.

        Args:
            rolling: shapes of what such a part carries instead of the environments.
        """
        learner, sampler = self.learner, self._sampler
        store, counts = learner.buffer.device_state(), learner.buffer.counts()
        leaves = jax.tree.leaves(learner.shapes)
        rolling = sampler.all_shapes if rolling is None else rolling
        carry = Carry(leaves, shapes_of(store), shapes_of(counts), rolling)
        carried = Carry(None, 0, learner.buffer.shard_counts, 0)  # type: ignore[arg-type]
        program = learner.mesh.program(
            partial(self.made, iteration=iteration),
            (carried, TOLD, None, None, 0, None, None), (carried, TOLD), donate=(1,),
        )  # fmt: skip
        with product_precision(learner.device, learner.precision):
            lowered = program.lower(carry, self.empty(), np.int32(0), *self.keys)
            return compiled(lowered, learner.device)

    # --- The program --------------------------------------------------------------------------

    @cached_property
    def told(self) -> Told:
        """Room for what a chunk's iterations tell of one shard: shapes."""
        return self._programs.get("told", self._told_shapes)

    def _told_shapes(self) -> Told:
        sampler, most = self._sampler, self._most
        actor = sampler.rollout.algorithm.actor_shapes
        alone = replace(sampler.rollout, shared=lambda flag: flag)  # no axis of members here
        _, ends, _ = jax.eval_shape(alone, actor, sampler.shapes, sampler.act_key)
        scalars = jax.ShapeDtypeStruct((len(self.learner.buffer.metrics) + 1,), np.float32)
        one = Told(scalars, jax.ShapeDtypeStruct((), np.int32), ends)
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((most, *leaf.shape), leaf.dtype), one)

    def empty(self) -> Told:
        """That room, of all shards."""
        mesh, room = self.learner.mesh, self.told
        shards = () if mesh.shards == 1 else (mesh.shards,)
        ends = jax.tree.map(lambda leaf: np.zeros((*shards, *leaf.shape), leaf.dtype), room.ends)
        scalars, steps = (np.zeros(leaf.shape, leaf.dtype) for leaf in room[:2])
        return mesh.put(Told(scalars, steps, ends), TOLD)

    def made(
        self, carry: Carry, told: Told, count: jax.Array, *keys: Any,
        iteration: Iteration | None = None,
    ) -> tuple[Carry, Told]:  # fmt: skip
        """`count` iterations, which write over what `told` held; `keys` as there. Pure."""
        once = iteration or self.iteration

        def body(number: jax.Array, loop: tuple[Carry, Told]) -> tuple[Carry, Told]:
            carry, told = loop
            carry, one = once(carry, *keys)

            def put(all_: jax.Array, new: jax.Array) -> jax.Array:
                return jax.lax.dynamic_update_index_in_dim(all_, new, number, 0)

            return carry, jax.tree.map(put, told, one)

        return jax.lax.fori_loop(0, count, body, (carry, told))

    def iteration(
        self, carry: Carry, key: jax.Array, buffer_key: Any, act_key: jax.Array, hp: jax.Array
    ) -> tuple[Carry, Told]:
        """One trajectory, and the updates that it pays for."""
        learner, rollout = self.learner, self._sampler.rollout
        params = learner.acting(carry.leaves, hp)
        trajectory, ends, rolling = rollout(params, carry.rolling, act_key)
        inputs, counts = learner.buffer.fed(trajectory, carry.counts, buffer_key)
        leaves, store, *published = learner.learn(carry.leaves, carry.store, inputs, key, hp)
        scalars = published[-2]
        shards = rollout.algorithm.shards
        steps = jnp.int32(trajectory.rewards.size * shards.count)
        if trajectory.valid is not None:
            steps = shards.sum(trajectory.valid.sum(dtype=jnp.int32))
        return Carry(leaves, store, counts, rolling), Told(scalars, steps, ends)

    # --- The host -----------------------------------------------------------------------------

    def advance(self, n: int) -> Iterator[Metrics]:
        self._asked, chunk = n, self._chunk
        if chunk is not None and (chunk.taken == chunk.count or self._together is not None):
            self._settle()
        while n > 0:
            chunk = self._chunk
            if chunk is None or chunk.taken == chunk.count:
                chunk = self._dispatched(min(n, self._length()))
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

    def _length(self) -> int:
        """Iterations of the next chunk."""
        fit = int(CHUNK_S / max(self._each_s, 1e-9))
        # A callback that looked will look again: what is made beyond that is made twice.
        free = self._most if not self._looks else (
            self._looks - self._unseen if self._unseen < self._looks else self._unseen
        )  # fmt: skip
        return max(min(fit, GROWTH * self._last, self._most, free), 1)

    def _dispatched(self, count: int) -> Chunk:
        """Make a chunk; an interrupt discards it."""
        learner = self.learner
        if self._carry is None:
            self._carry = self.begun()
        before = self._carry
        if isinstance(before, Carry):
            learner.carry(before.leaves, before.store)
        with self._discardable(), self._spans.span("fused"):
            begin = time.perf_counter()
            if self._together is not None:
                after, told, count = self._together.run(self._programs.member, self, before, count)
            elif (ahead := self._taken(before, count)) is not None:
                (after, told), count = ahead.made.result(), ahead.length
            else:
                after, told = self._called(before, count)
            took = time.perf_counter() - begin
            self._each_s, self._last = took / count, count
        self._carry = after
        if self._together is None and self._runs_ahead and took < AHEAD_S:
            self._begin_ahead(after)
        ends = told.ends
        iterations = np.nonzero(ends.length)[0]
        places = np.searchsorted(iterations, np.arange(count + 1))
        self._chunk = Chunk(before, count, told, ended(ends), places, infos(ends))
        return self._chunk

    def begun(self) -> Carry:
        """What the first iteration begins with."""
        learner, rolling = self.learner, self._sampler.rolling
        assert rolling is not None
        leaves, store = learner.carried
        buffer = learner.buffer
        counts, rolling = learner.mesh.put((buffer.counts(), rolling), (buffer.shard_counts, 0))
        return Carry(leaves, store, counts, rolling)

    def _begin_ahead(self, carry: Carry) -> None:
        """Begin the chunk that will probably be asked for."""
        length = min(self._length(), self._asked)
        self._ahead = Ahead(carry, length, self._thread.submit(self._called, carry, length))

    def _taken(self, before: Carry | Part | None, count: int) -> Ahead | None:
        """The chunk that was begun ahead, if it is one that is asked for."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        if ahead.before is before and (ahead.length <= count or not self._looks):
            return ahead  # what is beyond the count is for the next `advance`
        ahead.made.result()  # it cannot be stopped, and its room is needed
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
            return self._together.again(self, chunk.before, chunk.taken)
        return self._called(chunk.before, chunk.taken)[0]

    def _called(self, carry: Any, count: int) -> tuple[Carry, Told]:
        """Run the program; what it told is on the host then."""
        room, self._room = self._room, None  # it is written over
        room = self.empty() if room is None else room
        after, self._room = self._program(carry, room, np.int32(count), *self.keys)
        # Copies: the memory is the next chunk's.
        scalars, steps = (np.array(np.asarray(leaf)[:count]) for leaf in self._room[:2])
        axis = int(self.learner.mesh.shards > 1)
        ends = jax.tree.map(
            lambda leaf: np.array(np.asarray(leaf)[(slice(None),) * axis + (slice(count),)]),
            self._room.ends,
        )
        return after, Told(scalars, steps, side_by_side(ends) if axis else ends)

    @property
    def params(self) -> tuple[Any, ...]:
        self._settle()
        if not self.learner.bundle:
            self.learner.publish()
        return self.learner.bundle

    def start(self) -> None:
        self.learner.start()
        self._sampler.starting = self._programs.get("start", lambda: self._sampler.starting)
        self._sampler.start()

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
