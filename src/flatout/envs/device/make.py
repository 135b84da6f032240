"""Make a device environment from the name that the user gave; `envs.make`, `envs.task` and `run`
call it. JAX is imported only when an environment is made."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flatout.config.modules import import_function
from flatout.envs.device.base import DeviceEnv
from flatout.envs.device.twins import LIMIT, TWINS, refusal
from flatout.envs.source import EnvSource
from flatout.errors import (
    EnvironmentFailure,
    FlatoutError,
    UsageError,
    nearest,
    short,
    with_full_stop,
)


def device_env(name: str, kwargs: Mapping[str, Any] | None = None) -> DeviceEnv:
    """Make the device environment that a name stands for.

    Args:
        name: a Gymnasium id that has a twin, ``gymnax:NAME``, ``envelope:SUITE::NAME``, or
            ``module:factory`` of a function that returns a `DeviceEnv`.
        kwargs: arguments for it, as given by ``--env-kwargs``.

    Raises:
        UsageError: there is none of that name, its package is missing, it does not take these
            arguments, or it breaks the contract of `DeviceEnv` (`check.shape_problems`).
        EnvironmentFailure: a user's module or function failed.
    """
    from flatout.envs.device.check import refuse

    source, given = EnvSource(name), dict(kwargs or {})
    if source.library:
        made = _from_library(source, given)
    elif source.imported:
        made = _from_factory(name, given)
    else:
        made = _twin(name, given)
    env = replace(made, name=name)
    refuse(env)
    return env


def _from_library(source: EnvSource, kwargs: dict[str, Any]) -> DeviceEnv:
    adapter = importlib.import_module(f"flatout.envs.device.{source.library}")
    try:
        return adapter.make(source.inner, kwargs)
    except FlatoutError:
        raise
    except Exception as error:  # libraries refuse names and values with many kinds of exceptions
        given = f" with {short(kwargs)}" if kwargs else ""
        raise UsageError(
            f"{source.name} cannot be made{given}: {type(error).__name__}: {with_full_stop(error)}"
        ) from error


def _twin(name: str, kwargs: dict[str, Any]) -> DeviceEnv:
    if name not in TWINS:
        raise UsageError(
            f"{name} has no device environment; there are {', '.join(TWINS)}, gymnax:NAME, "
            f"envelope:SUITE::NAME, and your own as module:factory.{nearest(name, TWINS)}"
        )
    if why := refusal(name, kwargs):
        raise UsageError(why)
    twin = TWINS[name]
    limit = kwargs.pop(LIMIT, twin.limit)
    module = importlib.import_module(f"flatout.envs.device.{twin.module}")
    return getattr(module, twin.function)(limit=None if limit == -1 else limit, **kwargs)


def _from_factory(name: str, kwargs: dict[str, Any]) -> DeviceEnv:
    factory = import_function(name, name)
    try:
        made = factory(**kwargs)
    except FlatoutError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise EnvironmentFailure(
            f"making the environment {name} failed: {type(error).__name__}: {with_full_stop(error)}"
        ) from error
    if not isinstance(made, DeviceEnv):
        raise UsageError(
            f"{name} returned {type(made).__name__}; a device environment is a flatout.DeviceEnv."
        )
    return made
