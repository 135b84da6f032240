"""Random numbers that environments draw outside of themselves: from modules and classes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from types import FunctionType
from typing import Any

import gymnasium as gym
import numpy as np


class RandomSources:
    """The generators and spaces in the modules and classes of an environment and its wrappers.

    All environments of a process share them, and no reset with a seed concerns only one of them.

    Args:
        env: the environment.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self._sources = dict(_sources(env))
        self._states = self._now()

    def drawn(self) -> list[str]:
        """Return the names of those from which numbers were drawn since this object was made."""
        now = self._now()
        return [name for name, state in self._states.items() if now[name] != state]

    def _now(self) -> dict[str, str]:
        return {name: _state(source) for name, source in self._sources.items()}


def _sources(env: Any) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for owner in _layers(env):
        for kind in type(owner).__mro__:
            module = kind.__module__
            if module.partition(".")[0] in ("builtins", "gymnasium", "flatout", "typing"):
                continue
            places = {kind.__name__: dict(vars(kind))}
            for function in vars(kind).values():
                if isinstance(function, FunctionType):
                    places[function.__module__] = function.__globals__
            for place, values in places.items():
                for name, value in list(values.items()):
                    if id(value) not in seen and _is_source(value):
                        seen.add(id(value))
                        yield f"{place}.{name}", value


def _layers(env: Any) -> Iterator[Any]:
    """Yield an environment and those that it wraps."""
    while True:
        yield env
        if not isinstance(env, gym.Wrapper):
            return
        env = env.env


def _is_source(value: Any) -> bool:
    kinds = (np.random.Generator, np.random.RandomState, random.Random, gym.Space)
    return issubclass(type(value), kinds)


def _state(source: Any) -> str:
    """Return the state of a generator, or of a space's generators, as a text."""
    with suppress(Exception):  # a user's class may raise anything
        if isinstance(source, np.random.Generator):
            return repr(source.bit_generator.state)
        if isinstance(source, np.random.RandomState):
            return repr(source.get_state(legacy=False))
        if isinstance(source, random.Random):
            return str(hash(source.getstate()))
        inner = getattr(source, "spaces", ())
        parts = list(inner.values() if isinstance(inner, dict) else inner)
        return " ".join(map(_state, [one for one in (source._np_random, *parts) if one]))
    return ""
