"""Step 3 of the data flow, fused: a loop over iterations that act, step and learn, compiled as one
program. `FusedSchedule` runs it."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import shapes_of
from flatout.hardware.backend import compiled, matmul_precision
from flatout.learner.learner import Learner
from flatout.learner.programs import Programs
from flatout.learner.state import RunState
from flatout.samplers.device import DeviceSampler
from flatout.schedules.chunks import OUTPUT_AXES, ChunkOutput, Iteration

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
        self.learner, self._sampler, self._programs = learner, sampler, programs
        rollout = sampler.rollout
        kept = rollout.spec.horizon * rollout.num_envs * learner.mesh.shards
        self.max_iterations = min(max(MAX_CHUNK_STEPS // kept, 1), MAX_CHUNK_ITERATIONS)

    @property
    def keys(self) -> tuple[Any, ...]:
        """The last arguments of `iterate`: the run's keys and hyper-parameters. They are arguments,
        so that runs can share a program."""
        learner = self.learner
        return learner.key, learner.buffer.key, self._sampler.act_key, learner.hp

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
        environments = self._sampler.all_shapes if environments is None else environments
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
        sampler, max_iterations = self._sampler, self.max_iterations
        actor = sampler.rollout.algorithm.actor_shapes
        alone = replace(sampler.rollout, shared=lambda flag: flag)  # there is no member axis here
        _, ends, _ = jax.eval_shape(alone, actor, sampler.shapes, sampler.act_key)
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

        def body(
            number: jax.Array, carry: tuple[RunState, ChunkOutput]
        ) -> tuple[RunState, ChunkOutput]:
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
        learner, rollout = self.learner, self._sampler.rollout
        learned, store, counts, environments = state
        params = learner.acting(learned, hp)
        trajectory, ends, environments = rollout(params, environments, act_key)
        inputs, counts = learner.buffer.ingest_in_graph(trajectory, store, counts, buffer_key)
        learned, store, *published = learner.step(learned, store, inputs, key, hp)
        scalars = published[-2]
        shards = rollout.algorithm.shards
        steps = jnp.int32(trajectory.rewards.size * shards.count)
        if trajectory.valid is not None:
            steps = shards.sum(trajectory.valid.sum(dtype=jnp.int32))
        state = RunState(learned, store, counts, environments)
        return state, ChunkOutput(scalars, steps, ends)
