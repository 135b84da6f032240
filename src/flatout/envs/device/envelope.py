"""The adapter of jax-envelope (https://github.com/keraJLi/envelope), which wraps many suites;
`envs.device.make` calls it for ``envelope:SUITE::NAME``."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flatout.envs.device.adapting import box, key_shape, library, like, observation, scalar
from flatout.envs.device.base import DeviceEnv
from flatout.errors import UsageError, nearest, one_line, short
from flatout.installing import install
from flatout.types import ActionSpec, Array, DiscreteSpec


def make(name: str, kwargs: dict[str, Any]) -> DeviceEnv:
    """Make ``envelope:SUITE::NAME``, for example ``envelope:navix::Navix-Empty-5x5-v0``.

    The state of such an environment holds its own random key, derived from the key of the reset, so
    `step` does not use its key.

    Args:
        name: ``SUITE::NAME``, as `envelope.create` takes it.
        kwargs: arguments of the suite's environment. `max_episode_steps` is the time limit, by
            default that of the suite; -1 means none.

    Raises:
        UsageError: jax-envelope or the suite is missing, there is no such environment, or it does
            not take these arguments.
    """
    full = f"envelope:{name}"
    needed = "create", "registered_suites", "registered_environments"
    how = f"{install('envelope')} (Python 3.12 or newer)"
    envelope = library("envelope", full, how, needed)
    suites = envelope.registered_suites()
    suite, separator, _ = name.partition("::")
    if not separator or suite not in suites:
        near = nearest(suite, suites) if separator else ""
        words = f"with one of the suites {', '.join(suites)}"
        raise UsageError(f"{full} is not envelope:SUITE::NAME {words}.{near}")
    given = dict(kwargs)
    limit = given.pop("max_episode_steps", "default")
    if limit != "default" and not (type(limit) is int and (limit == -1 or limit >= 1)):
        raise UsageError(f"{full}: max_episode_steps = {short(limit)} is not at least 1, or -1.")
    env = _create(envelope, full, suite, name, given)
    limit = env.default_max_steps if limit == "default" else None if limit == -1 else limit

    state, info = jax.eval_shape(env.init, key_shape())
    high = getattr(env.observation_space, "high", None)
    obs_spec, observe = observation(full, info.obs, None if high is None else float(np.max(high)))
    action_spec = _actions(full, env.action_space)
    shape, dtype = tuple(env.action_space.shape), env.action_space.dtype
    action = jax.ShapeDtypeStruct(shape, dtype)
    after, _ = jax.eval_shape(env.step, state, action)
    stable = like(after)
    rounds = action_spec.kind == "Box" and np.dtype(dtype).kind in "iu"

    def reset(key: Array) -> tuple[Any, Array]:
        state, info = env.init(key)
        return stable(state), observe(info.obs)

    def step(state: Any, action: Array, key: Array) -> tuple[Any, Array, Array, Array, Array]:
        action = jnp.rint(action) if rounds else action
        state, info = env.step(state, action.reshape(shape).astype(dtype))
        flags = scalar(info.terminated, bool), scalar(info.truncated, bool)
        return stable(state), observe(info.obs), scalar(info.reward, np.float32), *flags

    return DeviceEnv(full, obs_spec, action_spec, limit, reset, step)


def _create(envelope: Any, full: str, suite: str, name: str, kwargs: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # suites emit warnings about their own packages
        try:
            return envelope.create(name, env_kwargs=kwargs or None, max_episode_steps=None)
        except ImportError as error:
            why = one_line(error.__cause__ or error)
            raise UsageError(f"{full}: the suite {suite} is not installed: {why}.") from error
        except Exception as error:
            if near := nearest(name, envelope.registered_environments(suite)):
                raise UsageError(f"{full}: {suite} has no such environment.{near}") from error
            raise


def _actions(full: str, space: Any) -> ActionSpec:
    kind = type(space).__name__
    if kind == "Discrete" and np.ndim(space.n) == 0:
        return DiscreteSpec(int(space.n))
    if kind == "Continuous":
        return box(tuple(space.shape) or (1,), space.low, space.high)
    raise UsageError(
        f"{full} acts with {kind}{list(getattr(space, 'shape', ()))}; Flatout takes one choice "
        "among several, or a box."
    )
