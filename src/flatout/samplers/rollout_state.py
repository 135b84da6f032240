"""What N device environments carry from one trajectory to the next, and how their episodes end."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flatout.envs.device.base import DeviceEnv
from flatout.envs.device.check import action_shape
from flatout.types import Array


class Pool(NamedTuple):
    """First states ``[P, ...]`` of the episodes ``base .. base + P - 1``; those before `taken`
    have begun."""

    env: Any
    obs: Array
    base: Array
    taken: Array


class RolloutState(NamedTuple):
    """What N environments carry from one trajectory to the next.

    Attributes:
        key: raw key of these environments' resets and steps, uint32 ``[2]``.
        first: the number of the first of them in the run, int32.
        env: their states ``[N, ...]``; obs: what they show ``[N, ...]``.
        length: int32 ``[N]``, total: float32 ``[N]``, of their episodes so far.
        step: int32, steps of each since the run's start: what noise is folded with.
        pool: first states of later episodes.
        values: sums and counts ``[N, 2]`` of the largest action value in their episodes (a count of
            -1: the sum is the mean of the episode before); None for algorithms without.
    """

    key: Array
    first: Array
    env: Any
    obs: Array
    length: Array
    total: Array
    step: Array
    pool: Pool
    values: Array | None


class Ends(NamedTuple):
    """Where episodes ended, ``[T, N]``: their lengths (int32, 0 where none ended), raw returns and
    mean largest action values (float32; ``[1, 1]`` where there are none); whether all that was seen
    is finite; and the scalars of `DeviceEnv.info` by name, float32 ``[T, N]``."""

    length: Array
    total: Array
    q_max: Array
    finite: Array
    info: dict[str, Array]


@functools.lru_cache(4096)  # as many as one population has members
def least_truncation(env: DeviceEnv) -> int:
    """Steps before which no episode is truncated; 0 if none ever is."""
    patience = 0 if _never_cuts(env) else env.patience or 1
    return min((steps for steps in (env.limit, patience) if steps), default=0)


def _never_cuts(env: DeviceEnv) -> bool:
    """Whether the rules truncate no episode: `step` returns False, whatever it is given."""

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
    with jax.ensure_compile_time_eval():  # the first caller may be a function that is being traced
        return not jax.jit(first_step)()  # a constant: one small program


def most_truncations(env: DeviceEnv, horizon: int) -> int:
    """How often one environment's episodes can be truncated within T steps, at least 1."""
    least = least_truncation(env)
    return 1 if not least else (horizon - 1) // least + 1
