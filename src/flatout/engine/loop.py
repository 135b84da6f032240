"""Step 3 of the data flow, fused: a loop over iterations that act, step and learn, compiled as one
program. `FusedSchedule` runs it.

A chunk consists of the iterations of one dispatch: the `Loop` computes it. Several runs may share
the program (`FusedPopulation`); its carry then has an axis of members.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from flatout.algorithms.base import shapes_of
from flatout.engine.device import DeviceSampler
from flatout.engine.learn import Learner
from flatout.engine.programs import Programs
from flatout.engine.rollout_state import Ends
from flatout.engine.state import RunState
from flatout.hardware.backend import compiled, matmul_precision
from flatout.types import Episodes, Trajectory


@custom_vmap
def for_all(flag: jax.Array) -> jax.Array:
    """Return a flag; under `jax.vmap`, one that is set for all members if it is set for one, so
    that all take the same branch."""
    return flag


@for_all.def_vmap
def _for_all_members(size: int, mapped: list[bool], flag: jax.Array) -> tuple[jax.Array, bool]:
    """Return the flag that all members share, and False: it has no axis of members."""
    return for_all(flag.any(0)), False


@dataclass(frozen=True)
class MemberSlice:
    """A view of one member's part of the state of all members, which `FusedPopulation` owns.

    Attributes:
        whole: the state of all members.
        keys: the `Loop.keys` of all members.
        member_index: the member's index on the axis of members.
        axes: member axes of `whole`: None for parts that all members share, 0 for the others.
    """

    whole: RunState
    keys: tuple[Any, ...]
    member_index: int
    axes: Any

    @property
    def learned(self) -> list[Any]:
        """A copy of this member's `RunState.learned`."""
        return _row(self.whole.learned, np.int32(self.member_index))

    def extract(self) -> RunState:
        """Return a copy of this member's state, without the axis of members."""
        axes, structure = jax.tree.flatten(self.axes, is_leaf=lambda axis: axis is None)
        parts = structure.flatten_up_to(self.whole)
        of_members = [part for axis, part in zip(axes, parts, strict=True) if axis is not None]
        own = iter(_row(of_members, np.int32(self.member_index)))
        return structure.unflatten(
            [part if axis is None else next(own) for axis, part in zip(axes, parts, strict=True)]
        )


@jax.jit
def _row(tree: Any, member_index: jax.Array) -> Any:
    """Return one row of every leaf, in one program. Indexing each leaf would run one program for
    each."""
    return jax.tree.map(lambda leaf: leaf[member_index], tree)


class ChunkOutput(NamedTuple):
    """The outputs of a chunk's M iterations, ``[M, ...]`` each: the scalars that `Learner.metrics`
    reads, environment steps, and the ends of episodes."""

    scalars: Any
    steps: Any
    ends: Ends


Iteration = Callable[[RunState, jax.Array, Any, jax.Array, jax.Array], tuple[RunState, ChunkOutput]]
"""One iteration of one shard, pure: ``(state, key, buffer_key, act_key, hp) -> state, outputs``."""

OUTPUT_AXES = ChunkOutput(None, None, 0)  # type: ignore[arg-type]
"""Shard axes of an iteration's outputs: None for those that all shards share, 0 for the others."""


@dataclass
class Chunk:
    """The iterations that one dispatch made, with their outputs on the host.

    Attributes:
        before: the state before the first iteration.
        count: the number of iterations.
        consumed: the number of iterations that the caller of `advance` has received so far.
        episodes: the episodes that ended, in the order of iterations.
        places: the index in `episodes` at which each iteration's episodes begin, ``[count + 1]``.
        infos: the final `info` scalars of these episodes; empty if there are none.
    """

    before: RunState | MemberSlice
    count: int
    output: ChunkOutput
    episodes: Episodes
    places: np.ndarray
    infos: list[dict[str, float] | None]
    consumed: int = 0


class ChunkResult(NamedTuple):
    """The result of one run of the program: the state after the last iteration, the outputs (in a
    buffer that a later chunk overwrites), and the seconds that it took."""

    after: RunState
    out_buffer: ChunkOutput
    took: float


class PrefetchedChunk(NamedTuple):
    """A chunk started in advance. While the host reads, it runs or waits for the previous chunk.

    Attributes:
        after: the state from which it continues, or the chunk that computes this state.
        length: its number of iterations.
        future: its result.
    """

    after: RunState | Future[ChunkResult]
    length: int
    future: Future[ChunkResult]

    @property
    def before(self) -> RunState:
        """The state before its first iteration; waits until this is computed."""
        return self.after.result().after if isinstance(self.after, Future) else self.after


MAX_CHUNK_STEPS = 1 << 20
"""The most environment steps of one chunk: device memory holds the ends of their episodes."""

MAX_CHUNK_ITERATIONS = 512
"""The most iterations of one chunk."""


class Loop:
    """The loop over a run's iterations; its length is an argument of the program.

    Args:
        learner: makes the updates of an iteration.
        sampler: its rollout makes the trajectory of an iteration.
        programs: shares shapes and programs with other runs of this shape.

    Attributes:
        max_iterations: the most iterations of one chunk.
    """

    def __init__(self, learner: Learner, sampler: DeviceSampler, programs: Programs) -> None:
        self.learner, self.sampler, self._programs = learner, sampler, programs
        rollout = sampler.rollout
        kept = rollout.spec.horizon * rollout.num_envs * learner.mesh.shards
        self.max_iterations = min(max(MAX_CHUNK_STEPS // kept, 1), MAX_CHUNK_ITERATIONS)

    @property
    def keys(self) -> tuple[Any, ...]:
        """The last arguments of `iterate`: the run's keys and hyper-parameters. They are arguments,
        so that runs can share a program."""
        learner = self.learner
        return learner.key, learner.buffer.key, self.sampler.act_key, learner.hp

    @property
    def member_axes(self) -> Any:
        """Member axes of the state: None for parts that all members share, 0 for the others."""
        return RunState(0, 0, self.learner.buffer.member_counts, 0)  # type: ignore[arg-type]

    def placed(self, state: RunState) -> RunState:
        """Return a state as the program takes it, with counters and environments on the devices."""
        buffer = self.learner.buffer
        counts, environments = self.learner.mesh.put(
            (buffer.loop_counts(state.counts), state.environments), (buffer.shard_counts, 0)
        )
        return state._replace(counts=counts, environments=environments)

    def compiled(self, iteration: Iteration | None = None, environments: Any = None) -> Any:
        """Compile `iterate`.

        Args:
            iteration: a replacement for the whole iteration; planning times parts of it.
            environments: the shapes of what this replacement carries instead of the environments.
        """
        learner, buffer = self.learner, self.learner.buffer
        environments = self.sampler.all_shapes if environments is None else environments
        store, counts = shapes_of((buffer.store(), buffer.loop_counts(buffer.counts())))
        state = RunState(jax.tree.leaves(learner.shapes), store, counts, environments)
        axes = RunState(None, 0, buffer.shard_counts, 0)  # type: ignore[arg-type]
        program = learner.mesh.program(
            partial(self.iterate, iteration=iteration),
            (axes, OUTPUT_AXES, None, None, 0, None, None), (axes, OUTPUT_AXES), donate=(1,),
        )  # fmt: skip
        with matmul_precision(learner.device, learner.precision):
            lowered = program.lower(state, self.empty(), np.int32(0), *self.keys)
            return compiled(lowered, learner.device)

    @cached_property
    def output(self) -> ChunkOutput:
        """The shapes of a chunk's output buffer, of one shard."""
        return self._programs.get("outputs", self._make_output_shapes)

    def _make_output_shapes(self) -> ChunkOutput:
        sampler, max_iterations = self.sampler, self.max_iterations
        actor = sampler.rollout.algorithm.actor_shapes
        _, ends, _ = jax.eval_shape(sampler.rollout, actor, sampler.shapes, sampler.act_key)
        scalars = jax.ShapeDtypeStruct((len(self.learner.buffer.metrics) + 1,), np.float32)
        one = ChunkOutput(scalars, jax.ShapeDtypeStruct((), np.int32), ends)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((max_iterations, *leaf.shape), leaf.dtype), one
        )

    def empty(self) -> ChunkOutput:
        """Return an empty output buffer for all shards."""
        mesh, out_buffer = self.learner.mesh, self.output
        shards = () if mesh.shards == 1 else (mesh.shards,)
        ends = jax.tree.map(
            lambda leaf: np.zeros((*shards, *leaf.shape), leaf.dtype), out_buffer.ends
        )
        scalars, steps = (np.zeros(leaf.shape, leaf.dtype) for leaf in out_buffer[:2])
        return mesh.put(ChunkOutput(scalars, steps, ends), OUTPUT_AXES)

    def iterate(
        self, state: RunState, output: ChunkOutput, count: jax.Array, *keys: Any,
        iteration: Iteration | None = None,
    ) -> tuple[RunState, ChunkOutput]:  # fmt: skip
        """Run `count` iterations, whose outputs overwrite the output buffer's first rows. Pure;
        `keys` are those of the property `keys`."""
        once = iteration or self.iteration

        def body(number: jax.Array, carry: Any) -> tuple[RunState, ChunkOutput]:
            state, output = carry
            state, one = once(state, *keys)

            def put(all_: jax.Array, new: jax.Array) -> jax.Array:
                return jax.lax.dynamic_update_index_in_dim(all_, new, number, 0)

            return state, jax.tree.map(put, output, one)

        return jax.lax.fori_loop(0, count, body, (state, output))

    def iteration(
        self, state: RunState, key: jax.Array, buffer_key: Any, act_key: jax.Array, hp: jax.Array
    ) -> tuple[RunState, ChunkOutput]:
        """Collect a trajectory and make the updates that it pays for. Pure."""
        trajectory, ends, state = self.collect(state, act_key, hp)
        state, scalars = self.learn(state, trajectory, key, buffer_key, hp)
        shards = self.sampler.rollout.algorithm.shards
        steps = jnp.int32(trajectory.rewards.size * shards.count)
        if trajectory.valid is not None:
            steps = shards.sum(trajectory.valid.sum(dtype=jnp.int32))
        return state, ChunkOutput(scalars, steps, ends)

    def collect(
        self, state: RunState, act_key: jax.Array, hp: jax.Array
    ) -> tuple[Trajectory, Ends, RunState]:
        """Collect a trajectory with the state's parameters. Pure."""
        params = self.learner.acting(state.learned, hp)
        trajectory, ends, environments = self.sampler.rollout(params, state.environments, act_key)
        return trajectory, ends, state._replace(environments=environments)

    def learn(
        self, state: RunState, trajectory: Trajectory, key: jax.Array, buffer_key: Any,
        hp: jax.Array,
    ) -> tuple[RunState, jax.Array]:  # fmt: skip
        """Make the updates that a trajectory pays for, and return `Published.scalars`. Pure."""
        learner = self.learner
        inputs, counts = learner.buffer.ingest_in_graph(
            trajectory, state.store, state.counts, buffer_key
        )
        learned, store, *published = learner.step(state.learned, state.store, inputs, key, hp)
        return RunState(learned, store, counts, state.environments), published[-2]
