"""Make environments from an id, ``module:factory``, an object or a function; `envs.task` calls it
before step 5 of the data flow."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from flatout.config.modules import PASSED, function_in, import_named
from flatout.config.schema import EnvConfig
from flatout.envs import envpool, register
from flatout.envs.ale import OneAtari
from flatout.envs.ale_ids import suggestion
from flatout.envs.deadline import CLOSE_S, close_in_time
from flatout.envs.device.base import DeviceEnv
from flatout.envs.device.make import device_env
from flatout.envs.device.on_host import OneDevice
from flatout.envs.mask_places import attribute
from flatout.envs.masks import masked_device
from flatout.envs.preparation import prepare, stack_of
from flatout.envs.prepared_vector import PreparedVector, prepared_vector
from flatout.envs.rendering import missing_library
from flatout.envs.source import EnvSource
from flatout.envs.spaces import action_spec, observation_spec
from flatout.envs.vector_kind import (
    INSPECTED,
    Borrowed,
    BorrowedVector,
    checked,
    size_argument,
    spec_of_one,
)
from flatout.errors import (
    EnvironmentFailure,
    NotInstalledError,
    UsageError,
    one_line,
    with_full_stop,
)
from flatout.types import ActionSpec, ObsSpec

Factory = Callable[..., "gym.Env[Any, Any]"]
"""Makes one environment. It is called with ``render_mode=...`` only if something is rendered. One
that makes a vector environment, which is no `gym.Env`, is called with ``num_envs=...``, and ignores
it if the user's function takes no number."""
Base = Callable[..., Any]
"""The user's own factory, whose result is not checked yet. It may return a `DeviceEnv`."""


class OneEnvironment:
    """A factory around a single environment object; its second call raises a UsageError."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._used = False

    def __call__(self, num_envs: int | None = None, **kwargs: Any) -> Any:
        together = isinstance(self._env, VectorEnv)
        if self._used or kwargs:
            several = "" if together else "envs above 1, "
            raise UsageError(
                f"one environment object cannot serve several environments ({several}"
                "evaluation during training, video); pass a function that makes one instead, or "
                "for evaluation another one as eval_env=."
            )
        self._used = True
        return BorrowedVector(self._env) if together else Borrowed(self._env)


def factory(config: EnvConfig, source: Any = None, info_masks: bool = False) -> Factory:
    """Return a function that makes the prepared environment.

    Args:
        config, source: see `open_task`.
        info_masks: see `prepare`.

    Raises:
        UsageError: the id, module or factory is unknown.
    """
    source = EnvSource.of(config, source)
    make = unprepared(config, source)
    if source.atari:
        return make

    def prepared(**kwargs: Any) -> Any:
        made: Any = make(**kwargs)
        if isinstance(made, VectorEnv):
            return prepared_vector(made, config, info_masks)
        return prepare(made, config, info_masks)

    return prepared


def unprepared(config: EnvConfig, source: Any = None) -> Factory:
    """Return a function that makes the environment as the user wrote it; see `factory`."""
    register()
    source = EnvSource.of(config, source)
    passed: Any = source.passed
    if source.atari:
        return lambda **kwargs: _call(lambda **mode: OneAtari(config, **mode), config.env, kwargs)
    base: Base
    if passed is None:
        base = _find_base(source, config)
    elif isinstance(passed, VectorEnv):  # before `gym.Env`: EnvPool's are both
        base = OneEnvironment(envpool.adapted(passed, config.env))
    elif isinstance(passed, gym.Env):
        base = OneEnvironment(passed)
    elif isinstance(passed, DeviceEnv):
        base = lambda **mode: passed  # noqa: E731
    elif callable(passed):
        base = _with_kwargs(passed, config)
    else:
        raise UsageError(
            "an environment is an id, module:factory, a gymnasium.Env, a gymnasium.vector."
            "VectorEnv, a flatout.DeviceEnv or a function that makes one, not "
            f"{type(passed).__name__}; for eight copies pass envs=8."
        )
    return lambda **kwargs: _call(base, config.env, kwargs)


def _with_kwargs(function: Callable[..., Any], config: EnvConfig) -> Base:
    """Return a function with the settings' arguments, and with the number of environments if it
    takes one; by default as many as an inspection needs."""
    settings, argument = config.env_kwargs, size_argument(function, config.env_kwargs)

    def base(num_envs: int = min(config.envs, INSPECTED), **kwargs: Any) -> Any:
        size = {argument: num_envs} if argument else {}
        return function(**settings, **size, **kwargs)

    return base


def takes_size(config: EnvConfig, source: EnvSource) -> bool:
    """Return whether what makes a vector environment takes the number of environments."""
    passed: Any = source.passed
    if passed is None and source.imported:
        setting = f"--env {source.name}"
        passed = function_in(*import_named(source.name, setting), setting)
    if isinstance(passed, VectorEnv):
        return False
    if passed is None:
        return source.pooled
    return bool(size_argument(passed, config.env_kwargs))


def _call(base: Base, name: str, kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    try:
        env = base(**kwargs)
    except (UsageError, EnvironmentFailure):
        raise
    except gym.error.DependencyNotInstalled as error:
        raise NotInstalledError(
            f"{name} needs a package that is not installed: {one_line(error)}"
        ) from error
    except (Exception, SystemExit) as error:  # a user's environment may raise anything
        if (refused := missing_library(name, error)) is not None:
            raise refused from error
        raise EnvironmentFailure(
            f"making the environment {name} failed: {type(error).__name__}: {with_full_stop(error)}"
        ) from error
    if isinstance(env, DeviceEnv):
        return one_device(env, name, kwargs.get("render_mode"))
    if isinstance(env, VectorEnv):
        vector: Any = checked(env, name)
        return vector
    if not isinstance(env, gym.Env):
        raise UsageError(
            f"{name} made {type(env).__name__}, neither a gymnasium.Env nor a gymnasium.vector."
            "VectorEnv, nor a flatout.DeviceEnv."
        )
    for space in ("observation_space", "action_space"):
        if not isinstance(attribute(env, space), gym.Space):
            raise UsageError(f"{name} has no {space}; set it in its __init__.")
    return env


def one_device(env: DeviceEnv, name: str, render_mode: str | None = None) -> OneDevice:
    """Check a device environment and wrap it for Gymnasium under the name that the user gave it.

    Raises:
        UsageError: it breaks the contract of `DeviceEnv`.
    """
    from flatout.envs.device.check import refuse

    env = replace(env, name=name or env.name)
    refuse(env)
    return OneDevice(masked_device(env), render_mode)


def close_quietly(env: gym.Env[Any, Any]) -> None:
    """Close an environment that is no longer needed. An exception in its `close` is ignored.
    An environment that does not close within `CLOSE_S` is left open, and a message says so."""
    name = f"{type(env.unwrapped).__name__}, opened to inspect it,"
    close_in_time(env.close, CLOSE_S, name, lambda error: None)


def _own_file(name: str) -> str:
    """Return how to name the environment in a Python file, if `name` begins with that file or is
    its module."""
    path, _, function = name.partition(":")
    file = Path(path if path.endswith(".py") else f"{path}.py")
    if not path.endswith(".py") and not os.path.isfile(file):
        return ""
    parts = file.with_suffix("").parts
    module = parts[-1] if file.is_absolute() or ".." in parts else ".".join(parts)
    return (
        f" An environment of your own is --env {module}:{function or 'NAME'}, where "
        f"{function or 'NAME'} is a class or a function in {file.name}."
    )


def _find_base(source: EnvSource, config: EnvConfig) -> Base:
    name, kwargs = source.name, config.env_kwargs
    if not name:
        raise UsageError("no environment: pass --env ID, --env module:factory or --preset NAME.")
    if name.endswith(PASSED):
        raise UsageError(
            f"{name} was passed as a Python object and cannot be made from this name: pass env= "
            "(--env module:factory)."
        )
    if source.library:
        return lambda **mode: device_env(name, kwargs)
    if source.pooled:
        size = min(config.envs, INSPECTED)
        return lambda num_envs=size: envpool.make(name, source.inner, kwargs, num_envs)
    if source.imported:
        module, attribute = import_named(name, f"--env {name}")
        if attribute not in gym.registry or hasattr(module, attribute):
            function = function_in(module, attribute, f"--env {name}")
            return _with_kwargs(function, config)
        name = attribute  # Gymnasium's "module:id": importing the module registered the id
    try:
        spec = copy.deepcopy(gym.spec(name))
    except gym.error.Error as error:
        hint = _own_file(name) or suggestion(name) or f" {with_full_stop(error)}"
        raise UsageError(f"unknown environment {name!r}.{hint}") from None
    # Gymnasium's checking wrappers cost time and are not needed: Flatout always resets first, and
    # checks the spaces itself.
    spec.order_enforce = False
    spec.disable_env_checker = True
    return lambda **given: gym.make(spec, **kwargs, **given)


def specs(env: gym.Env[Any, Any], name: str) -> tuple[ObsSpec, ActionSpec]:
    """Return an environment's observation and action spaces as specs; those of each environment of
    a vector environment.

    Args:
        name: the environment's name, for messages.

    Raises:
        UsageError: Flatout's algorithms do not support one of the spaces.
    """
    if isinstance(env, OneAtari):
        return env.obs_spec, env.action_spec
    if isinstance(env, OneDevice):
        return env.device.obs_spec, env.device.action_spec
    if isinstance(env, VectorEnv):
        stack = env.stack if isinstance(env, PreparedVector) else 1
        one = observation_spec(env.single_observation_space, name, stack)
        return one, action_spec(env.single_action_space, name)
    seen = observation_spec(env.observation_space, name, stack_of(env))
    return seen, action_spec(env.action_space, name)


def refuse_other_spaces(
    env: gym.Env[Any, Any], name: str, obs_spec: ObsSpec, action_spec: ActionSpec
) -> None:
    """Raise a `UsageError` if a further environment has other spaces than the first."""
    seen, actions = specs(env, name)
    if seen == obs_spec and actions == action_spec:
        return
    what, of = "observation", ""
    if seen == obs_spec:
        what = "action"
    elif isinstance(seen, dict) and isinstance(obs_spec, dict):
        paths = sorted({*seen, *obs_spec})
        of = next(path for path in paths if seen.get(path) != obs_spec.get(path))
    raise UsageError(
        f"{name} made environments with different {what} spaces"
        f"{f' (at {of!r})' if of else ''}: all copies need the same spaces."
    )


def episode_limit(env: gym.Env[Any, Any]) -> int | None:
    """Return the time limit of an episode in steps, or None if the environment has none.

    Raises:
        UsageError: the limit is not a whole number.
    """
    if isinstance(env, OneAtari):
        return env.max_steps
    spec = attribute(env, "spec")  # a user's environment may use this name for something else
    if isinstance(env, VectorEnv) and not isinstance(spec, EnvSpec):
        spec = spec_of_one(env)
    limit = spec.max_episode_steps if isinstance(spec, EnvSpec) else None
    inner: Any = env
    while isinstance(inner, gym.Wrapper):
        if limit is None and isinstance(inner, gym.wrappers.TimeLimit):
            limit = inner._max_episode_steps
        inner = inner.env
    if limit:
        try:
            return int(limit)
        except (TypeError, ValueError):
            raise UsageError(
                f"the time limit of an episode, max_episode_steps, is {limit!r}: it has to be a "
                "whole number."
            ) from None
    return inner.device.limit if isinstance(inner, OneDevice) else None
