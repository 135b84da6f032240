"""The parts of a fused iteration, each alone in a loop as the schedule's own.

Nothing can be timed within one program; what its parts take alone tells what its time is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flatout import tree
from flatout.algorithms.base import Acted, Algorithm, shapes_of
from flatout.engine.fused import FusedSchedule
from flatout.engine.loop import ChunkOutput, Iteration
from flatout.engine.state import RunState
from flatout.envs.device.base import DeviceEnv
from flatout.randomness import uniforms
from flatout.types import Obs, Trajectory

TINY = 1e-30
"""So much of a parameter is added to rewards: learning from them cannot be moved out of a loop."""


def loop(schedule: FusedSchedule, part: Iteration, instead: Any = None) -> Callable[[int], None]:
    """Compile a loop over one part of a started schedule's iterations.

    Args:
        instead: what it carries instead of the environments, of one shard.

    Returns:
        A function that makes a given number of iterations, starting where the last call ended, and
        waits.
    """
    state, room = schedule.state, schedule.loop.empty()
    if instead is not None:
        mesh = schedule.learner.mesh
        if mesh.shards > 1:
            instead = jax.tree.map(lambda leaf: np.stack([leaf] * mesh.shards), instead)
        state = state._replace(environments=mesh.put(instead, 0))
    program = schedule.loop.compiled(part, shapes_of(state.environments))

    def run(count: int) -> None:
        nonlocal state, room
        state, room = program(state, room, np.int32(count), *schedule.loop.keys)
        jax.block_until_ready((state, room))

    return run


def rollout(schedule: FusedSchedule, acts: bool = True) -> Iteration:
    """Playing a trajectory; with random actions instead of the policy's if not `acts`."""
    plays = schedule.loop.sampler.rollout
    if not acts:
        plays = replace(plays, algorithm=_random(plays.algorithm, plays.env))

    def part(
        state: RunState, key: Any, buffer_key: Any, act_key: Any, hp: Any
    ) -> tuple[RunState, ChunkOutput]:
        params = schedule.learner.acting(state.learned, hp)
        trajectory, ends, environments = plays(params, state.environments, act_key)
        # Nobody learns from it: what is not used would not be computed.
        used = sum(jnp.sum(leaf, dtype=jnp.float32) for leaf in jax.tree.leaves(trajectory))
        scalars = jnp.zeros(schedule.loop.output.scalars.shape[1:])
        output = ChunkOutput(scalars, jnp.asarray(used > 0, jnp.int32), ends)
        return state._replace(environments=environments), output

    return part


def learning(schedule: FusedSchedule) -> Iteration:
    """Learning from a trajectory, the same one each time, which is carried."""

    def part(
        state: RunState, key: Any, buffer_key: Any, act_key: Any, hp: Any
    ) -> tuple[RunState, ChunkOutput]:
        learner = schedule.learner
        learned, store, counts, data = state
        parameter = jax.tree.leaves(learned)[0].ravel()[0]
        seen = data._replace(rewards=data.rewards + TINY * parameter)
        inputs, counts = learner.buffer.ingest_in_graph(seen, store, counts, buffer_key)
        learned, store, *published = learner.step(learned, store, inputs, key, hp)
        room = schedule.loop.output
        ends = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), room.ends)
        output = ChunkOutput(published[-2], jnp.int32(0), ends)
        return RunState(learned, store, counts, data), output

    return part


def trajectory_shapes(schedule: FusedSchedule) -> Trajectory:
    """The shapes of one shard's trajectory."""
    sampler = schedule.loop.sampler
    params = sampler.rollout.algorithm.actor_shapes
    return jax.eval_shape(sampler.rollout, params, sampler.shapes, sampler.act_key)[0]


def _random(algorithm: Algorithm, env: DeviceEnv) -> Algorithm:
    """The algorithm with random actions, and zeros for what else acting tells."""
    spec = env.action_spec
    size = math.prod(spec.choice_shape)

    def act(params: Any, obs: Obs, carry: Any, noise: Any) -> Acted:
        key, zero = jax.random.key(0, impl="threefry2x32"), jnp.int32(0)
        draws = jax.vmap(lambda number: algorithm.noise(key, number, zero))
        drawn = jax.eval_shape(draws, jnp.arange(len(tree.first(obs))))
        action, _, extras = jax.eval_shape(algorithm.act, params, obs, carry, drawn)
        chosen = spec.from_uniform(jnp, noise).astype(action.dtype)
        zeros = {name: jnp.zeros(one.shape, one.dtype) for name, one in extras.items()}
        return chosen.reshape(action.shape), carry, zeros

    return replace(algorithm, act=act, noise=lambda key, n, step: uniforms(key, n, step, size))
