"""The state of N device environments between trajectories, and the ends of their episodes.

`Rollout` makes both; the device sampler and the fused schedule keep and read them."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flatout.envs.device.base import DeviceEnv, action_shape
from flatout.types import Array, Obs


class Pool(NamedTuple):
    """First states ``[P, ...]`` of the episodes ``base .. base + P - 1``, numbered in the order in
    which the N environments begin them; those with numbers below `taken` have begun."""

    env: Any
    obs: Obs
    base: Array
    taken: Array


class RolloutState(NamedTuple):
    """The state of N environments between two trajectories.

    Attributes:
        key: raw key of these environments' resets and steps, uint32 ``[2]``.
        first: the number of the first of them in the run, int32.
        env: the environments' states ``[N, ...]``.
        obs: their current observations ``[N, ...]``.
        length: steps of each current episode, int32 ``[N]``.
        total: raw return of each current episode, float32 ``[N]``.
        step: steps of each environment since the run's start, int32; it selects the noise.
        pool: first states of later episodes.
        values: ``[N, 2]``, over the current episode's steps: the sum of max Q and the number of
            terms. Before the first term: the last episode's mean and -1. None without Q values.
        carry: the carry of a recurrent policy before the next step, ``[N, ...]``; () for others.
    """

    key: Array
    first: Array
    env: Any
    obs: Obs
    length: Array
    total: Array
    step: Array
    pool: Pool
    values: Array | None
    carry: Any = ()


class Ends(NamedTuple):
    """The ends of episodes in a trajectory.

    Attributes:
        length: the length of the episode that ended with each step, int32 ``[T, N]``; 0 if none.
        total: raw returns so far, float32 ``[T, N]``.
        q_max: means of max Q over the episode, float32 ``[T, N]``; ``[1, 1]`` without Q values.
        finite: whether all observations and rewards are finite.
        stuck: the step and the environment's number, int32 ``[2]``, of the first action that had to
            be chosen although the mask allows none; -1 if there is none. None without masks.
        early: the length of the longest episode that was truncated before `least_truncation` steps,
            int32; 0 if there is none. If there is one, final observations may be lost.
        info: the scalars of `DeviceEnv.info` by name, float32 ``[T, N]`` each.
    """

    length: Array
    total: Array
    q_max: Array
    finite: Array
    stuck: Array | None
    early: Array
    info: dict[str, Array]


@functools.lru_cache(4096)  # as many as one population has members
def least_truncation(env: DeviceEnv) -> int:
    """Return the least number of steps after which an episode may be truncated; 0 for never."""
    patience = 0 if _never_cuts(env) else env.patience or 1
    return min((steps for steps in (env.limit, patience) if steps), default=0)


def _never_cuts(env: DeviceEnv) -> bool:
    """Return whether the rules truncate no episode: `step` returns a constant False."""

    def first_step() -> Array:
        key = jax.random.key(0, impl="threefry2x32")
        state, _ = env.reset(key)
        return env.step(state, jnp.zeros(action.shape, action.dtype), key)[-1]

    action = action_shape(env)
    key = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))
    state, _ = jax.eval_shape(env.reset, key)
    program = jax.make_jaxpr(lambda *given: env.step(*given)[-1])(state, action, key).jaxpr
    needed = {id(variable) for variable in program.outvars}
    for equation in reversed(program.eqns):
        if any(id(variable) in needed for variable in equation.outvars):
            needed |= {id(variable) for variable in equation.invars}
    if any(id(variable) in needed for variable in program.invars):
        return False
    with jax.ensure_compile_time_eval():  # the first caller may itself be traced
        return not jax.jit(first_step)()  # a constant, so this is one small program


def most_truncations(env: DeviceEnv, horizon: int) -> int:
    """Return how often one environment can be truncated within T steps, at least 1."""
    least = least_truncation(env)
    return 1 if not least else (horizon - 1) // least + 1
