"""Masks of the actions that an environment allows, which become an array of its observations.

`envs.mask_places` finds the place where an environment gives its mask. `MaskTaker` takes it out,
next to the environment; `WithMask`, outside of all other wrappers, adds it to the observation as
the entry `MASK`. From there on it travels like every other array. `envs.preparation` calls this.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from flatout.actions import choices
from flatout.envs.device.base import DeviceEnv
from flatout.envs.mask_places import (
    IGNORE,
    MASK,
    MASKS,
    PLAIN,
    info_masks,
    mask_key,
    mask_owner,
    visible_masks,
)
from flatout.errors import UsageError, short
from flatout.types import ActionSpec, ObservationSpec

STUCK = "a mask that allows no action"


class MaskError(ValueError):
    """A mask is missing, malformed, or contradicts another one; the message is a phrase."""


class MaskSpace(gym.spaces.MultiBinary):
    """The space of the masks that `WithMask` adds."""


def maskable(spec: ActionSpec) -> bool:
    """Return whether a mask can forbid actions of a space: whether it has choices."""
    return bool(choices(spec))


def as_mask(value: Any, spec: ActionSpec, batches: bool = False) -> np.ndarray:
    """Return a mask as uint8 ``[K]`` of 0 and 1.

    Args:
        value: an array ``[K]``, or a tuple of arrays, one for each component of the action.
        spec: the actions; K is the sum of `flatout.actions.choices`.
        batches: whether arrays may have a first axis B, which the result keeps.

    Raises:
        MaskError: it or a part of it has another length, or it has other values than 0 and 1
            (False and True).
    """
    sizes, parts = choices(spec), list[np.ndarray]()
    try:
        if isinstance(value, tuple) and len(sizes) > 1:
            parts = [np.asarray(part) for part in value]
        mask = np.concatenate(parts, -1) if parts else np.asarray(value)
    except ValueError:
        raise MaskError(f"{short(value)}, which is no array") from None
    size, lengths = sum(sizes), [part.shape[-1] for part in parts]
    if parts and lengths != [*sizes]:
        raise MaskError(
            f"with parts of {_listed(lengths)} entries, but the components of the {spec.kind} "
            f"actions need {_listed(sizes)}, in this order"
        )
    batch = batches and mask.ndim > 1 and mask.shape[1:] == (size,)
    if not batch and mask.size != size:
        raise MaskError(
            f"of shape {list(mask.shape)}, but the {spec.kind} actions need {size} entries, one "
            "for each value"
        )
    rows = mask.ndim > 1 and max(mask.shape) < size  # of several components, not one after another
    if not batch and rows and len(sizes) > 1 and {mask.shape[-1]} != {*sizes}:
        raise MaskError(
            f"of shape {list(mask.shape)}, which is not one row for each component of the "
            f"{spec.kind} actions; they need {size} entries, the components one after another"
        )
    if mask.dtype.kind not in "biuf" or not ((mask == 0) | (mask == 1)).all():
        raise MaskError(f"{short(value)} of type {mask.dtype}; its entries have to be 0 or 1")
    return mask.astype(np.uint8).reshape((-1, size) if batch else size)


def _listed(lengths: Sequence[int]) -> str:
    return ", ".join(map(str, lengths))


def with_mask(observation: Any, mask: Any, path: str, entries: Sequence[str]) -> tuple[Any, Any]:
    """Return an environment's raw observation as a dict without its mask, and the mask: the given
    one, or the one in the observation, or None.

    Args:
        path: the mask's path in the prepared observation.
        entries: the keys of the prepared observation.
    """
    keys = [key for key in entries if key != path]
    if isinstance(observation, Mapping):
        held = [observation[key] for key in MASKS if key in observation]
        mask = held[0] if mask is None and held else mask
        observation = {key: one for key, one in observation.items() if key not in MASKS}
        if observation.keys() != set(keys) and len(observation) == 1:
            observation = next(iter(observation.values()))
    if len(keys) == 1 and not (isinstance(observation, Mapping) and keys[0] in observation):
        observation = {keys[0]: observation}
    return observation, mask


class MaskTaker(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that takes the mask out of what an environment returns, and keeps it.

    Args:
        env: the environment.
        spec: its actions.
        in_info: whether its infos hold masks.

    Attributes:
        mask: the mask of the newest observation, uint8 ``[K]``.

    Raises:
        UsageError: the actions have no choices that a mask could forbid, or a method `action_masks`
            needs arguments.
    """

    def __init__(self, env: gym.Env[Any, Any], spec: ActionSpec, in_info: bool, name: str) -> None:
        super().__init__(env)
        if not maskable(spec):
            where = ", ".join(visible_masks(env)) or "info"
            raise UsageError(
                f"{name} masks its actions ({where}), but masks are for Discrete, MultiDiscrete "
                f"and MultiBinary actions, and these are {spec.kind}: {IGNORE}."
            )
        self._spec, self._in_info = spec, in_info
        self._key, self._owner = mask_key(env.observation_space), mask_owner(env)
        self._method = f"{type(self._owner).__name__}.action_masks()"
        _refuse_arguments(self._owner, name)
        self.mask = self._nothing = np.zeros(sum(choices(spec)), np.uint8)
        if self._key:
            self.observation_space = _rest(env.observation_space)

    def reset(self, **kwargs: Any) -> Any:
        """Reset the environment.

        Raises:
            MaskError: the mask is missing or malformed, or two of them differ.
        """
        result: Any = self.env.reset(**kwargs)
        if type(result) is not tuple or len(result) != 2:
            return result  # `HostEnvs` refuses it
        obs, info = result
        return self._taken(obs, info, False), info

    def step(self, action: Any) -> Any:
        """Step the environment; raises as `reset`. An episode that ended may come without a mask,
        which then forbids all actions; one that was truncated has to have it."""
        result: Any = self.env.step(action)
        if type(result) is not tuple or len(result) != 5:
            return result
        obs, reward, terminated, truncated, info = result
        return self._taken(obs, info, terminated), reward, terminated, truncated, info

    def _taken(self, obs: Any, info: Any, over: bool) -> Any:
        """Keep the mask, and return the observation without it."""
        shown = bool(info) and (MASK in info or MASKS[1] in info)
        if self._in_info and not over and not shown:
            raise MaskError(f"no mask in its info, which had info[{MASK!r}] after the first reset")
        given: list[tuple[str, np.ndarray]] = []
        if self._key and isinstance(obs, Mapping):
            for key in MASKS:
                if key in obs:
                    self._read(given, f"observation[{key!r}]", obs[key])
        if not over:  # a finished game's info may hold the mask of the player who moves next
            if self._owner is not None:
                self._read(given, self._method, self._called())
            if shown:
                for place, value in info_masks(info).items():
                    self._read(given, place, value)
        if not given and not over:
            raise MaskError("no mask")
        self.mask = given[0][1] if given else self._nothing
        for place, mask in given[1:]:
            if not np.array_equal(mask, self.mask):
                at = int((mask != self.mask).argmax())
                raise MaskError(f"masks that differ: {given[0][0]} and {place}, at entry {at}")
        return _rest(obs) if self._key else obs

    def _called(self) -> Any:
        return self._owner.action_masks()

    def _read(self, given: list[tuple[str, np.ndarray]], place: str, value: Any) -> None:
        """Append a mask with its place, unless it is None."""
        if value is None:
            return
        usual = type(value) is np.ndarray and value.shape == self._nothing.shape
        if usual and value.dtype.char in "?bB" and max(value.tobytes()) <= 1:  # quickly
            given.append((place, value.astype(np.uint8)))
            return
        try:
            given.append((place, as_mask(value, self._spec)))
        except MaskError as error:
            raise MaskError(f"a mask {error}, in {place}") from None


def raised_in_masks(error: BaseException) -> bool:
    """Return whether an exception was raised in a method `action_masks`, which `MaskTaker` calls
    within `reset` and `step`."""
    called = MaskTaker._called.__code__
    return any(frame.f_code is called for frame, _ in traceback.walk_tb(error.__traceback__))


class WithMask(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that adds the mask to observations: they become a dict with the entry `MASK`. One
    that is not a dict is the entry `PLAIN`.

    Args:
        env: wraps `taker`.
        taker: keeps the mask.
    """

    def __init__(self, env: gym.Env[Any, Any], taker: MaskTaker) -> None:
        super().__init__(env)
        self._taker = taker
        space = env.observation_space
        self._entries = isinstance(space, gym.spaces.Dict)
        inner = dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {PLAIN: space}
        self.observation_space = gym.spaces.Dict(inner | {MASK: MaskSpace(len(taker.mask))})

    def reset(self, **kwargs: Any) -> Any:
        result: Any = self.env.reset(**kwargs)
        if type(result) is not tuple or len(result) != 2:
            return result
        return self._added(result[0]), result[1]

    def step(self, action: Any) -> Any:
        result: Any = self.env.step(action)
        if type(result) is not tuple or len(result) != 5:
            return result
        return self._added(result[0]), *result[1:]

    def _added(self, obs: Any) -> Any:
        if not self._entries:
            return {PLAIN: obs, MASK: self._taker.mask}
        return {**obs, MASK: self._taker.mask} if isinstance(obs, Mapping) else obs


def without_mask(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Remove the mask from a Dict observation; one other entry alone becomes the observation.
    Environments with other observations are returned unchanged."""
    space = env.observation_space
    if not mask_key(space):
        return env
    return gym.wrappers.TransformObservation(env, _rest, _rest(space))


def _rest(nested: Any) -> Any:
    """Return a Dict space, or an observation of it, without its masks; one other entry alone. What
    is no dict is returned unchanged."""
    space = isinstance(nested, gym.spaces.Dict)
    if not space and not isinstance(nested, Mapping):
        return nested
    entries = nested.spaces if space else nested
    rest = {name: entry for name, entry in entries.items() if name not in MASKS}
    if len(rest) == 1:
        return next(iter(rest.values()))
    return gym.spaces.Dict(rest) if space else rest


def masked_device(env: DeviceEnv) -> DeviceEnv:
    """Return a device environment whose spec says which entry of its observation is a mask: the one
    with the key `MASK` whose size is that of a mask."""
    spec, size = env.obs_spec, sum(choices(env.action_spec))
    found = spec.get(MASK) if isinstance(spec, dict) and len(spec) > 1 else None
    if not size or not isinstance(found, ObservationSpec) or found.mask or found.shape != (size,):
        return env
    assert isinstance(spec, dict)
    return replace(env, obs_spec=spec | {MASK: replace(found, mask=True, high=None)})


def unmasked_device(env: DeviceEnv) -> DeviceEnv:
    """Return a device environment without the mask in its observation; see `without_mask`."""
    spec = env.obs_spec
    masks = [path for path, one in spec.items() if one.mask] if isinstance(spec, dict) else []
    if not isinstance(spec, dict) or not masks:
        return env
    rest = [path for path in spec if path not in masks]

    def seen(obs: Any) -> Any:
        return obs[rest[0]] if len(rest) == 1 else {path: obs[path] for path in rest}

    def reset(key: Any) -> Any:
        state, obs = env.reset(key)
        return state, seen(obs)

    def step(state: Any, action: Any, key: Any) -> Any:
        state, obs, *others = env.step(state, action, key)
        return state, seen(obs), *others

    return replace(env, obs_spec=seen(spec), reset=reset, step=step)


def _refuse_arguments(owner: Any, name: str) -> None:
    """Raise a `UsageError` if the method `action_masks` of an environment needs arguments."""
    try:
        signature = inspect.signature(owner.action_masks)
    except (AttributeError, TypeError, ValueError):  # there is none, or it is written in C
        return
    try:
        signature.bind()
    except TypeError as error:
        raise UsageError(
            f"{name}: {type(owner).__name__}.action_masks has to take no arguments: {error}. "
            f"Correct or rename it, or {IGNORE}."
        ) from None
