"""The adapter of gymnax (https://github.com/RobertTLange/gymnax), versions 0.0.x and 1.x;
`envs.device.make` calls it for ``gymnax:NAME``."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flatout.envs.device.adapting import (
    box,
    key_shape,
    library,
    like,
    observation,
    require_attributes,
    scalar,
)
from flatout.envs.device.base import DeviceEnv
from flatout.errors import UsageError, nearest
from flatout.installing import install
from flatout.types import ActionSpec, Array, DiscreteSpec

NEEDED = ("step_env", "reset_env", "is_terminal", "action_space", "observation_space")
FOREVER = 2**30


def make(name: str, kwargs: dict[str, Any]) -> DeviceEnv:
    """Make ``gymnax:NAME``.

    gymnax's `step` resets by itself and returns 5 values, or 6 since version 1.0. `step_env` does
    not reset and returns 5 values in all versions, so it is used here. Its flag `done` marks every
    end of an episode in 0.0.x, including the time limit, but only terminations in 1.x. The
    `terminated` of this adapter never includes the time limit, which becomes `DeviceEnv.limit`.

    Args:
        name: a name in ``gymnax.registered_envs``.
        kwargs: arguments of ``gymnax.make``, or fields of the environment's parameters.

    Raises:
        UsageError: gymnax is missing or has an unsupported version, or it has no such environment
            or argument.
    """
    full = f"gymnax:{name}"
    how = install("gymnax")
    gymnax = library("gymnax", full, how, ("registered_envs", "make"))
    if name not in gymnax.registered_envs:
        near = nearest(name, gymnax.registered_envs)
        there = f" It has {', '.join(gymnax.registered_envs)}."
        raise UsageError(f"{full}: gymnax has no {name!r}.{near or there}")
    env, params = _create(gymnax, full, name, kwargs)
    require_attributes("gymnax", full, env, NEEDED)
    require_attributes("gymnax", full, params, ("max_steps_in_episode", "replace"))
    limit = int(params.max_steps_in_episode)
    base: Any = library("gymnax.environments.environment", full, how, ()).Environment
    counts_time = not hasattr(base, "is_truncated")  # 0.0.x: `done` includes the time limit
    cuts = not counts_time and type(env).is_truncated is not base.is_truncated
    endless = params.replace(max_steps_in_episode=FOREVER)

    key = key_shape()
    raw, state = jax.eval_shape(lambda key: env.reset_env(key, params), key)
    space = env.observation_space(params)
    high = getattr(space, "high", None)
    if name.endswith("-MinAtar"):  # observations are 0 and 1, but floats in some versions
        raw = jax.ShapeDtypeStruct(raw.shape, np.bool_)
    obs_spec, observe = observation(full, raw, None if high is None else float(np.max(high)))
    action_spec = _actions(full, env.action_space(params))
    shape = tuple(getattr(env.action_space(params), "shape", ()))
    action = jax.ShapeDtypeStruct(shape, np.dtype(action_spec.choice_dtype))
    _, after, *_ = jax.eval_shape(
        lambda key, s, a: env.step_env(key, s, a, params), key, state, action
    )
    stable = like(after)

    def reset(key: Array) -> tuple[Any, Array]:
        obs, state = env.reset_env(key, params)
        return stable(state), observe(obs)

    def step(state: Any, action: Array, key: Array) -> tuple[Any, Array, Array, Array, Array]:
        obs, state, reward, done, _ = env.step_env(key, state, action.reshape(shape), params)
        if counts_time:
            late = state.time >= params.max_steps_in_episode
            done = jnp.where(late, env.is_terminal(state, endless), done)
        cut = env.is_truncated(state, params) if cuts else False
        flags = scalar(done, bool), scalar(cut, bool)
        return stable(state), observe(obs), scalar(reward, np.float32), *flags

    return DeviceEnv(full, obs_spec, action_spec, limit, reset, step)


def _create(gymnax: Any, full: str, name: str, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Make the environment and its parameters. Arguments that name a field of the parameters set
    it; the others are passed to ``gymnax.make``."""
    env, params = gymnax.make(name)
    fields = {field.name for field in dataclasses.fields(params)}
    accepted = set(inspect.signature(type(env).__init__).parameters) - {"self", "args", "kwargs"}
    own = {key: value for key, value in kwargs.items() if key not in fields}
    if unknown := sorted(set(own) - accepted):
        there = sorted(fields | accepted)
        near = nearest(unknown[0], there)
        raise UsageError(f"{full} takes {', '.join(there)}, not {unknown[0]!r}.{near}")
    if own:
        env, params = gymnax.make(name, **own)
    return env, params.replace(**{k: v for k, v in kwargs.items() if k in fields})


def _actions(full: str, space: Any) -> ActionSpec:
    kind = type(space).__name__
    if kind == "Discrete":
        return DiscreteSpec(int(space.n))
    if kind == "Box":
        return box(tuple(space.shape) or (1,), space.low, space.high)
    raise UsageError(f"{full} acts with a {kind} space; Flatout takes Discrete and Box actions.")
