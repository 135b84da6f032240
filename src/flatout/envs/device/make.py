"""Make a device environment from the name that the user gave; `envs.make`, `envs.task` and `run`
call it. JAX is imported only when an environment is made."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flatout.config.modules import import_function
from flatout.envs.device.base import DeviceEnv
from flatout.errors import EnvironmentFailure, FlatoutError, UsageError, nearest, one_line, short

LIBRARIES = ("gymnax", "envelope")
"""Libraries whose environments are named ``gymnax:NAME`` and ``envelope:SUITE::NAME``."""


@dataclass(frozen=True)
class Twin:
    """The twin of a host environment.

    Attributes:
        module, function: the function in `envs.device` that makes it.
        limit: the host environment's time limit in steps, or None.
        arguments: arguments that the host environment and the function both take. Each has a test
            of its value, and words that say which values pass.
    """

    module: str
    function: str
    limit: int | None
    arguments: Mapping[str, tuple[Callable[[Any], bool], str]]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _between(low: int, high: int) -> tuple[Callable[[Any], bool], str]:
    def test(value: Any) -> bool:
        return type(value) is int and low <= value <= high

    return test, f"a whole number from {low} to {high}"


NUMBER = (_number, "a number")
FLAG = (lambda value: isinstance(value, bool), "true or false")
GOAL = {"goal_velocity": NUMBER}
CARTPOLE = {"sutton_barto_reward": FLAG}

TWINS: Mapping[str, Twin] = {
    "CartPole-v0": Twin("classic", "cartpole", 200, CARTPOLE),
    "CartPole-v1": Twin("classic", "cartpole", 500, CARTPOLE),
    "Acrobot-v1": Twin("classic", "acrobot", 500, {}),
    "MountainCar-v0": Twin("classic", "mountain_car", 200, GOAL),
    "MountainCarContinuous-v0": Twin("classic", "mountain_car_continuous", 999, GOAL),
    "Pendulum-v1": Twin("classic", "pendulum", 200, {"g": NUMBER}),
    "flatout/Snake-v0": Twin(
        "snake", "snake", None, {"size": _between(2, 255), "patience": _between(1, 2**31 - 1)}
    ),
}

LIMIT = "max_episode_steps"
"""The argument that `gymnasium.make` takes for every id; -1 removes the time limit."""


def in_library(name: str) -> bool:
    """Return whether a name is that of an environment of one of `LIBRARIES`."""
    return name.partition(":")[0] in LIBRARIES and ":" in name


def has_twin(name: str, kwargs: Mapping[str, Any] | None = None) -> bool:
    """Return whether a Gymnasium id has a twin that takes these arguments."""
    return name in TWINS and not _refusal(name, kwargs or {})


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

    given = dict(kwargs or {})
    if in_library(name):
        library, _, inner = name.partition(":")
        made = _from_library(name, library, inner, given)
    elif ":" in name and "/" not in name.partition(":")[0]:
        made = _from_factory(name, given)
    else:
        made = _twin(name, given)
    env = replace(made, name=name)
    refuse(env)
    return env


def _from_library(name: str, library: str, inner: str, kwargs: dict[str, Any]) -> DeviceEnv:
    adapter = importlib.import_module(f"flatout.envs.device.{library}")
    try:
        return adapter.make(inner, kwargs)
    except FlatoutError:
        raise
    except Exception as error:  # libraries refuse names and values with many kinds of exceptions
        given = f" with {short(kwargs)}" if kwargs else ""
        raise UsageError(
            f"{name} cannot be made{given}: {type(error).__name__}: {one_line(error).rstrip('.')}."
        ) from error


def _twin(name: str, kwargs: dict[str, Any]) -> DeviceEnv:
    if name not in TWINS:
        raise UsageError(
            f"{name} has no device environment; there are {', '.join(TWINS)}, gymnax:NAME, "
            f"envelope:SUITE::NAME, and your own as module:factory.{nearest(name, TWINS)}"
        )
    if refusal := _refusal(name, kwargs):
        raise UsageError(refusal)
    twin = TWINS[name]
    limit = kwargs.pop(LIMIT, twin.limit)
    module = importlib.import_module(f"flatout.envs.device.{twin.module}")
    return getattr(module, twin.function)(limit=None if limit == -1 else limit, **kwargs)


def _refusal(name: str, kwargs: Mapping[str, Any]) -> str:
    """Return a sentence why a twin cannot take these arguments, or an empty string."""
    limits = _between(1, 2**31 - 1)
    known = {**TWINS[name].arguments, LIMIT: (lambda n: n == -1 or limits[0](n), limits[1])}
    for key, value in kwargs.items():
        if key not in known:
            return f"the device environment of {name} takes {', '.join(known)}, not {key!r}."
        test, words = known[key]
        if not test(value):
            return f"the device environment of {name}: {key} = {short(value)} is not {words}."
    return ""


def _from_factory(name: str, kwargs: dict[str, Any]) -> DeviceEnv:
    factory = import_function(name, name)
    try:
        made = factory(**kwargs)
    except FlatoutError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise EnvironmentFailure(
            f"making the environment {name} failed: {type(error).__name__}: {one_line(error)}."
        ) from error
    if not isinstance(made, DeviceEnv):
        raise UsageError(
            f"{name} returned {type(made).__name__}; a device environment is a flatout.DeviceEnv."
        )
    return made
