"""Make environments from an id, ``module:factory``, an object or a function; `envs.task` calls it
before step 5 of the data flow."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from flatout.config.modules import PASSED, function_in, import_named
from flatout.config.schema import EnvConfig
from flatout.envs import register
from flatout.envs.ale import OneAtari
from flatout.envs.ale_ids import suggestion
from flatout.envs.deadline import CLOSE_S, DeadlineExceeded, deadline
from flatout.envs.device.base import DeviceEnv
from flatout.envs.device.make import device_env
from flatout.envs.device.on_host import OneDevice
from flatout.envs.mask_places import attribute
from flatout.envs.masks import masked_device
from flatout.envs.preparation import prepare, stack_of
from flatout.envs.rendering import missing_library
from flatout.envs.source import EnvSource
from flatout.envs.spaces import action_spec, observation_spec
from flatout.errors import (
    EnvironmentFailure,
    NotInstalledError,
    UsageError,
    one_line,
)
from flatout.output import say
from flatout.types import ActionSpec, ObsSpec

Factory = Callable[..., "gym.Env[Any, Any]"]
"""Makes one environment. It is called with ``render_mode=...`` only if something is rendered."""
Base = Callable[..., Any]
"""The user's own factory, whose result is not checked yet. It may return a `DeviceEnv`."""


class Borrowed(gym.Wrapper[Any, Any, Any, Any]):
    """A user's environment object, which a run uses but never closes."""

    def close(self) -> None:
        """Do nothing: the user closes the environment."""


class OneEnvironment:
    """A factory around a single environment object; its second call raises a UsageError."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self._env = env
        self._used = False

    def __call__(self, **kwargs: Any) -> gym.Env[Any, Any]:
        if self._used or kwargs:
            raise UsageError(
                "one environment object cannot serve several environments (envs above 1, "
                "evaluation during training, video); pass a function that makes one instead."
            )
        self._used = True
        return Borrowed(self._env)


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
    return lambda **kwargs: prepare(make(**kwargs), config, info_masks)


def unprepared(config: EnvConfig, source: Any = None) -> Factory:
    """Return a function that makes the environment as the user wrote it; see `factory`."""
    register()
    source = EnvSource.of(config, source)
    passed: Any = source.passed
    if source.atari:
        return lambda **kwargs: _call(lambda **mode: OneAtari(config, **mode), config.env, kwargs)
    base: Base
    if passed is None:
        base = _find_base(source, config.env_kwargs)
    elif isinstance(passed, gym.Env):
        base = OneEnvironment(passed)
    elif isinstance(passed, DeviceEnv):
        base = lambda **mode: passed  # noqa: E731
    elif callable(passed):
        base = _with_kwargs(passed, config.env_kwargs)
    else:
        raise UsageError(
            "an environment is an id, module:factory, a gymnasium.Env, a flatout.DeviceEnv or a "
            f"function that makes one, not {type(passed).__name__}; for eight copies pass envs=8."
        )
    return lambda **kwargs: _call(base, config.env, kwargs)


def _with_kwargs(function: Callable[..., Any], settings: dict[str, Any]) -> Base:
    return lambda **kwargs: function(**settings, **kwargs)


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
            f"making the environment {name} failed: {type(error).__name__}: {one_line(error)}."
        ) from error
    if isinstance(env, DeviceEnv):
        return one_device(env, name, kwargs.get("render_mode"))
    if not isinstance(env, gym.Env):
        raise UsageError(
            f"{name} made {type(env).__name__}, neither a gymnasium.Env nor a flatout.DeviceEnv."
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
    try:
        with contextlib.suppress(Exception, SystemExit), deadline(CLOSE_S):
            env.close()
    except DeadlineExceeded:
        name = type(env.unwrapped).__name__
        say(f"{name}, opened to inspect it, did not close within {CLOSE_S:g} s; it was left open.")


def _find_base(source: EnvSource, kwargs: dict[str, Any]) -> Base:
    name = source.name
    if not name:
        raise UsageError("no environment: pass --env ID, --env module:factory or --preset NAME.")
    if name.endswith(PASSED):
        raise UsageError(
            f"{name} was passed as a Python object and cannot be made from this name: pass env= "
            "(--env module:factory)."
        )
    if source.library:
        return lambda **mode: device_env(name, kwargs)
    if source.imported:
        module, attribute = import_named(name, f"--env {name}")
        if attribute not in gym.registry or hasattr(module, attribute):
            function = function_in(module, attribute, f"--env {name}")
            return _with_kwargs(function, kwargs)
        name = attribute  # Gymnasium's "module:id": importing the module registered the id
    try:
        spec = copy.deepcopy(gym.spec(name))
    except gym.error.Error as error:
        hint = suggestion(name) or f" {one_line(error).rstrip('.')}."
        raise UsageError(f"unknown environment {name!r}:{hint}") from None
    # Gymnasium's checking wrappers cost time and are not needed: Flatout always resets first, and
    # checks the spaces itself.
    spec.order_enforce = False
    spec.disable_env_checker = True
    return _with_kwargs(lambda **given: gym.make(spec, **given), kwargs)


def specs(env: gym.Env[Any, Any], name: str) -> tuple[ObsSpec, ActionSpec]:
    """Return an environment's observation and action spaces as specs.

    Args:
        name: the environment's name, for messages.

    Raises:
        UsageError: Flatout's algorithms do not support one of the spaces.
    """
    if isinstance(env, OneAtari):
        return env.obs_spec, env.action_spec
    if isinstance(env, OneDevice):
        return env.device.obs_spec, env.device.action_spec
    seen = observation_spec(env.observation_space, name, stack_of(env))
    return seen, action_spec(env.action_space, name)


def episode_limit(env: gym.Env[Any, Any]) -> int | None:
    """Return the time limit of an episode in steps, or None if the environment has none.

    Raises:
        UsageError: the limit is not a whole number.
    """
    if isinstance(env, OneAtari):
        return env.max_steps
    spec = attribute(env, "spec")  # a user's environment may use this name for something else
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
