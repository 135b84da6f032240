"""Names of objects that a Python program passes, by which later programs find them again."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from flatout.envs.device.base import DeviceEnv
from flatout.errors import UsageError
from flatout.storage.trust import Consent


def consent(trust: bool, **named: Any) -> Consent:
    """Return the consent to run the code that the caller names; None names nothing."""
    return Consent({name: value for name, value in named.items() if value is not None}, trust)


def network_name(network: Any) -> tuple[dict[str, str], Any]:
    """Return a network as the name of a built-in one, or as the user's functions.

    Raises:
        UsageError: the value has neither form.
    """
    if isinstance(network, str):
        return {"network": network}, None
    if isinstance(network, Mapping):
        if not network:
            raise UsageError("network is an empty dict: name an entry, or leave it out.")
        for path, one in network.items():
            if not callable(one):
                kind = type(one).__name__
                raise UsageError(f"network[{path!r}] is a function, not {kind}.")
        return {}, dict(network)
    if network is not None and not callable(network):
        raise UsageError(
            "network is a name, a function or a dict of functions by path, not "
            f"{type(network).__name__}."
        )
    return {}, network


def algorithm_name(make: Any) -> str:
    """Return ``module:function``; for a function of a script, as the command could import it."""
    if isinstance(make, str):
        return make
    if not callable(make):
        raise UsageError(f"algorithm is a name or a function, not {type(make).__name__}.")
    if isinstance(make, functools.partial):  # by its name alone it would be another
        return f"{algorithm_name(make.func)}(...)"
    module, name = make.__module__, getattr(make, "__qualname__", type(make).__name__)
    if module == "__main__":
        module = Path(getattr(sys.modules[module], "__file__", None) or "main").stem
    return f"{module}:{name}"


def environment_name(env: Any) -> tuple[str | None, Any]:
    """Return an environment's name, and the object or factory if it was not passed by name.

    The name of a class or function that can be imported is ``module:name``, and that of an object
    made by `gymnasium.make` alone is its id; a loaded agent makes its environment from these names.
    The name of an environment that cannot be made again in this way ends with ``(...)``.
    """
    if env is None or isinstance(env, str):
        return env, None
    if isinstance(env, DeviceEnv):
        return env.name, env
    if isinstance(env, VectorEnv):  # before `gym.Env`: EnvPool's are both
        return f"{type(env.unwrapped).__name__}(...)", env
    if isinstance(env, gym.Env) and env.spec is not None:
        name = env.spec.id
        return name if _as_registered(env.spec) else f"{name}(...)", env
    name = getattr(env, "__qualname__", None)
    if name is None:
        return f"{type(env).__name__}(...)", env
    module = getattr(env, "__module__", "")  # a generator has none
    there = getattr(sys.modules.get(module), name, None) is env
    return f"{module}:{name}" if there else f"{name}(...)", env


def _as_registered(spec: EnvSpec) -> bool:
    """Return whether an environment equals the one that its id makes: no further wrappers,
    arguments or limits."""
    if spec.id not in gym.registry:
        return False
    registered = gym.spec(spec.id)
    own = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
    same = own == registered.kwargs and not spec.additional_wrappers
    return same and spec.max_episode_steps == registered.max_episode_steps
