"""EnvPool's environments as a vector environment whose `reset` obeys a mask: ``envpool:Pong-v5``.

EnvPool's C++ threads step them. An environment whose episode has ended is reset alone, by its
number, so that no step is spent on that. The extra `envpool` installs it.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv

from flatout.config.modules import POOL
from flatout.errors import (
    EnvironmentFailure,
    NotInstalledError,
    UsageError,
    nearest,
    with_full_stop,
)
from flatout.installing import install


class Pool(VectorEnv[Any, Any, Any]):
    """Environments of EnvPool.

    Only a pool that is made again has other seeds, so a reset of all environments with a seed makes
    one.

    Args:
        count: the number of environments.
        spaces: the spaces of one observation and of one action.
        make: makes a pool with a seed; None for a user's object, which has the seed that it was
            made with.
        pool: the pool, if there is one already.
    """

    def __init__(
        self, count: int, spaces: tuple[gym.Space[Any], gym.Space[Any]],
        make: Callable[[int], Any] | None, pool: Any = None,
    ) -> None:  # fmt: skip
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs, self._make = count, make
        self._pool: Any = pool
        self.single_observation_space, self.single_action_space = spaces
        self.observation_space = gym.vector.utils.batch_space(spaces[0], count)
        self.action_space = gym.vector.utils.batch_space(spaces[1], count)
        self._obs: Any = None  # the last observations of all environments

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of ``options["reset_mask"]``."""
        mask = (options or {}).get("reset_mask")
        if mask is not None and not mask.all():
            which = np.flatnonzero(mask)
            new, info = self._pool.reset(which.astype(np.int32))
            self._obs = _replaced(self._obs, which, new)
            return self._obs, info
        if self._make is not None and (seed is not None or self._pool is None):
            self.close_extras()
            self._pool = self._make(seed or 0)
        self._obs, info = self._pool.reset()
        return self._obs, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments."""
        result = self._pool.step(actions)
        self._obs = result[0]
        return result

    def close_extras(self, **kwargs: Any) -> None:
        """Close the pool, unless it is a user's object."""
        if self._make is not None and self._pool is not None:
            self._pool.close()
            self._pool = None


def make(name: str, inner: str, kwargs: Mapping[str, Any], num_envs: int = 1) -> Pool:
    """Return environments of EnvPool; they are made by the first reset.

    Args:
        name: the name that the user gave.
        inner: EnvPool's own name, ``Pong-v5``.
        kwargs: arguments of ``envpool.make_gymnasium``.

    Raises:
        NotInstalledError: EnvPool is missing.
        UsageError: it has no such environment, or not these arguments.
    """
    try:
        with _quiet():
            library: Any = importlib.import_module(POOL)
    except ModuleNotFoundError as error:
        if error.name != POOL:
            raise EnvironmentFailure(f"{name}: importing EnvPool failed: {error}.") from error
        raise NotInstalledError(f"{name} needs EnvPool: {install(POOL)}.") from None
    if inner not in (known := library.list_all_envs()):
        raise UsageError(f"EnvPool has no environment {inner!r}.{nearest(inner, known)}")
    refused = {"num_envs", "batch_size", "seed"} & kwargs.keys()
    if refused:
        raise UsageError(
            f"--env-kwargs {min(refused)} is not for {name}: --envs and --seed say it, and all "
            "environments step together."
        )
    try:
        with _quiet():
            spec = library.make_spec(inner, num_envs=num_envs, **kwargs)
            spaces = spec.gymnasium_observation_space, spec.gymnasium_action_space
    except (TypeError, AssertionError, ValueError) as error:
        raise UsageError(f"EnvPool cannot make {inner}: {with_full_stop(error)}") from error

    def opened(seed: int) -> Any:
        with _quiet():
            made = library.make_gymnasium(inner, num_envs=num_envs, seed=seed, **kwargs)
            _ = made.observation_space, made.action_space  # they are made at the first look
        return made

    pool = Pool(num_envs, spaces, opened)
    limit = spec.config.max_episode_steps
    pool.spec = EnvSpec(name, max_episode_steps=int(limit) or None)
    return pool


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings: EnvPool's spaces have bounds that float32 rounds, and Gymnasium says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def adapted(vector: Any, name: str) -> Any:
    """Return what a user passed or a function made as a `Pool`, if it is EnvPool's; otherwise
    unchanged.

    Raises:
        UsageError: not all of its environments step together.
    """
    if not any(kind.__module__.startswith(f"{POOL}.") for kind in type(vector).__mro__):
        return vector
    count, batch = vector.config["num_envs"], vector.config["batch_size"]
    if not isinstance(vector, VectorEnv):
        raise UsageError(f"{name} has not Gymnasium's interface: use envpool.make_gymnasium.")
    if batch != count:
        raise UsageError(
            f"{name} has num_envs = {count} and batch_size = {batch}: all environments step "
            "together, so leave batch_size out."
        )
    spec: Any = vector.spec
    spaces = spec.gymnasium_observation_space, spec.gymnasium_action_space
    return Pool(count, spaces, None, vector)


def _replaced(obs: Any, which: np.ndarray, new: Any) -> Any:
    """Return a copy of observations with those of some environments replaced."""
    if isinstance(obs, Mapping):
        return {key: _replaced(inner, which, new[key]) for key, inner in obs.items()}
    copy = np.array(obs)
    copy[which] = new
    return copy
