"""The preparation of a vector environment's observations: grey images, other sizes, frame stacks
and masks of actions, each environment's by the wrappers that prepare single environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from flatout.config.schema import EnvConfig
from flatout.envs.mask_places import IGNORE, MASKS, attribute, mask_key, mask_owner, refuse_unread
from flatout.envs.masks import MaskError
from flatout.envs.preparation import is_prepared, prepare, stack_of
from flatout.envs.vector_kind import ONE_BY_ONE, Borrowed, BorrowedVector
from flatout.errors import InvalidReturn, UsageError, short

FINAL, FINAL_INFO = "final_obs", "final_info"
"""The keys of the last observations of episodes, and of their infos, in the infos of mode
SAME_STEP."""


class Row(gym.Env[Any, Any]):
    """One environment of a vector, which returns what the last call of the vector returned for it.

    Attributes:
        given: its observation and its info.
        terminated: whether its episode has terminated.
    """

    def __init__(self, vector: Any) -> None:
        self.observation_space = vector.single_observation_space
        self.action_space = vector.single_action_space
        self.given: tuple[Any, dict[str, Any]] = None, {}
        self.terminated = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Return the first observation of an episode."""
        return self.given

    def step(self, action: Any) -> Any:
        """Return the newest observation."""
        obs, info = self.given
        return obs, 0.0, self.terminated, False, info


class PreparedVector(VectorWrapper[Any, Any, Any, Any, Any]):
    """A vector environment with prepared observations.

    Args:
        vector: the vector environment.
        config: how its observations are prepared.
        in_info: whether its infos hold masks.

    Attributes:
        stack: the number of frames that are stacked.
        singles: its environments, prepared, if they can be stepped one by one (`_single_envs`).

    Raises:
        UsageError: as `prepare`.
    """

    def __init__(self, vector: VectorEnv[Any, Any, Any], config: EnvConfig, in_info: bool) -> None:
        super().__init__(vector)
        self._name, self._in_info = config.env, in_info
        count = vector.num_envs
        self._rows = [Row(vector) for _ in range(count)]
        self._prepared = [prepare(row, config, in_info) for row in self._rows]
        each = _single_envs(vector)
        self.singles = None if each is None else [prepare(env, config, in_info) for env in each]
        first = (self.singles or self._prepared)[0]
        self.stack, self.single_observation_space = stack_of(first), first.observation_space
        self.observation_space = batch_space(self.single_observation_space, count)
        self._obs: list[Any] = [None] * count

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of ``options["reset_mask"]``."""
        mask = (options or {}).get("reset_mask")
        result: Any = self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], Mapping):
            return result  # `OwnVectorEnvs` refuses it
        infos: Any = result[1]
        seen = self._split(result[0])
        for env in range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist():
            self._obs[env] = self._first(env, seen[env], infos)
        return self._joined(), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments."""
        result: Any = self.env.step(actions)
        if not isinstance(result, tuple) or len(result) != 5 or not isinstance(result[4], Mapping):
            return result  # `OwnVectorEnvs` refuses it
        raw, rewards, terminated, truncated, infos = result
        flags = np.asarray(terminated), np.asarray(truncated)
        if any(one.shape != (self.num_envs,) or one.dtype == object for one in flags):
            return result
        seen, over = self._split(raw), np.logical_or(*flags)
        within = self.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP and FINAL in infos
        finals: list[Any] = [None] * self.num_envs
        for env, row in enumerate(self._rows):
            row.terminated = bool(flags[0][env])
            if within and over[env]:
                last = self._last(infos[FINAL], env)
                row.given = last, self._masks(infos.get(FINAL_INFO, {}), env)
                finals[env] = self._call(env, "step")
                self._obs[env] = self._first(env, seen[env], infos)
            else:
                row.given = seen[env], self._masks(infos, env)
                self._obs[env] = self._call(env, "step")
        if within:
            infos = {**infos, FINAL: finals}
        return self._joined(), rewards, terminated, truncated, infos

    def _first(self, env: int, obs: Any, infos: Mapping[str, Any]) -> Any:
        """Return the first observation of an episode, prepared."""
        self._rows[env].given = obs, self._masks(infos, env)
        return self._call(env, "reset")

    def _call(self, env: int, call: str) -> Any:
        """Return the observation that `reset` or `step` of an environment's wrappers returns."""
        try:
            one = self._prepared[env]
            return (one.reset() if call == "reset" else one.step(None))[0]
        except MaskError as error:
            raise InvalidReturn(
                f"{self._name} gave {error}, for its environment {env} in {call}: correct "
                f"it, or {IGNORE}."
            ) from None

    def _masks(self, infos: Any, env: int) -> dict[str, Any]:
        """Return the masks that the infos hold for an environment."""
        if not self._in_info or not isinstance(infos, Mapping):
            return {}
        found: dict[str, Any] = {}
        for key in MASKS:
            given = infos.get(f"_{key}")  # Gymnasium's sign which environments have an entry
            if key in infos and (given is None or given[env]):
                masks = infos[key]
                if isinstance(masks, tuple) and any(getattr(m, "ndim", 1) > 1 for m in masks):
                    raise InvalidReturn(
                        f"{self._name} gave infos[{key!r}] as a tuple of arrays with several axes: "
                        "give one array with a row for each environment, the action's components "
                        f"one after another, or {IGNORE}."
                    )
                found[key] = masks[env]
        return found

    def _split(self, obs: Any) -> list[Any]:
        """Return each environment's observation of batched ones."""
        try:
            return _rows(obs, self.env.single_observation_space, self.num_envs)
        except (KeyError, TypeError, ValueError):
            raise InvalidReturn(
                f"{self._name} returned observations {short(obs)}, which are not "
                f"{self.num_envs} of its single_observation_space; correct it."
            ) from None

    def _last(self, finals: Any, env: int) -> Any:
        """Return the observation with which an environment's episode ended."""
        return self._split(finals)[env] if isinstance(finals, Mapping | tuple) else finals[env]

    def _joined(self) -> Any:
        return _batched(self._obs, self.single_observation_space)


def _rows(obs: Any, space: gym.Space[Any], count: int) -> list[Any]:
    """Return a list of the rows of batched observations of a space."""
    if isinstance(space, gym.spaces.Dict):
        parts = {key: _rows(obs[key], one, count) for key, one in space.spaces.items()}
        return [{key: part[env] for key, part in parts.items()} for env in range(count)]
    if isinstance(space, gym.spaces.Tuple):
        each = [_rows(one, inner, count) for one, inner in zip(obs, space.spaces, strict=True)]
        return list(zip(*each, strict=True))
    if len(obs) != count:
        raise ValueError
    return list(obs)


def _batched(rows: list[Any], space: gym.Space[Any]) -> Any:
    """Return the batched observations of a list of observations of a space."""
    if isinstance(space, gym.spaces.Dict):
        parts = {key: [row[key] for row in rows] for key in space.spaces}
        return {key: _batched(part, space.spaces[key]) for key, part in parts.items()}
    if isinstance(space, gym.spaces.Tuple):
        each = zip(zip(*rows, strict=True), space.spaces, strict=True)
        return tuple(_batched([*part], inner) for part, inner in each)
    return np.stack(rows)


def prepared_vector(vector: Any, config: EnvConfig, in_info: bool) -> Any:
    """Return a vector environment, prepared as the settings ask; see `prepare`.

    Raises:
        UsageError: the observations cannot be prepared like this, or a mask is where it would not
            be obeyed.
    """
    space, each = vector.single_observation_space, _single_envs(vector)
    masked = bool(mask_key(space))
    if not config.ignore_action_masks:
        if not masked:
            refuse_unread(space, config.env)
        if each is not None:
            masked = masked or mask_owner(each[0]) is not None
        elif has_mask_method(vector):
            raise UsageError(
                f"{config.env} has a method action_masks, which is called only of single "
                f"environments: give infos['action_mask'], or {ONE_BY_ONE}, or {IGNORE}."
            )
    if is_prepared(config) or masked or in_info:
        return PreparedVector(vector, config, in_info and not config.ignore_action_masks)
    return vector


def has_mask_method(vector: Any) -> bool:
    """Return whether a vector environment, or an environment of a `SyncVectorEnv` in it, has a
    method `action_masks`."""
    inner = attribute(vector, "unwrapped")
    within = inner.envs[0] if type(inner) is SyncVectorEnv else None
    return mask_owner(vector) is not None or mask_owner(within) is not None


def single_envs(vector: Any) -> list[gym.Env[Any, Any]] | None:
    """Return the environments of a `SyncVectorEnv`, which are as well stepped one by one, and in
    half the time; None for all other vector environments."""
    return vector.singles if isinstance(vector, PreparedVector) else _single_envs(vector)


def _single_envs(vector: Any) -> list[gym.Env[Any, Any]] | None:
    borrowed = isinstance(vector, BorrowedVector)
    inner = vector.env if borrowed else vector
    if type(inner) is not SyncVectorEnv or inner.observation_mode != "same":
        return None
    return [Borrowed(env) if borrowed else env for env in inner.envs]
