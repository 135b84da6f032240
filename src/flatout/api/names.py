"""What to call what a Python program passes as it is, so that it is found again by that name."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from flatout.envs.device.base import DeviceEnv
from flatout.errors import UsageError
from flatout.storage.trust import Consent


def consent(trust: bool, **named: Any) -> Consent:
    """Consent to what the caller names, unless it is None."""
    return Consent({name: value for name, value in named.items() if value is not None}, trust)


def network_name(network: Any) -> tuple[dict[str, str], Any]:
    """A network as the setting that names a built-in one, or as functions of the user's own.

    Raises:
        UsageError: it is neither.
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
    """``module:function``; of a script's function, as the command could import it."""
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
    """What to call an environment, and the object or factory where it is not a name.

    A class or function that can be imported is ``module:name``, an object that `gymnasium.make`
    alone has made its id: so they come back when an agent is loaded. What cannot be made again by
    its name ends with ``(...)``.
    """
    if env is None or isinstance(env, str):
        return env, None
    if isinstance(env, DeviceEnv):
        return env.name, env
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
    """Whether an environment is what its id makes: no wrappers, arguments or limits of its own."""
    if spec.id not in gym.registry:
        return False
    registered = gym.spec(spec.id)
    own = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
    same = own == registered.kwargs and not spec.additional_wrappers
    return same and spec.max_episode_steps == registered.max_episode_steps
