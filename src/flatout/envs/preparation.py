"""Preparation of observations with Gymnasium's wrappers, when `envs.make` makes an environment:
grey images, other sizes, frame stacks."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from flatout.casts import stored
from flatout.config.schema import EnvConfig
from flatout.envs.masks import refuse_masks, without_mask
from flatout.errors import InvalidReturn, UsageError
from flatout.installing import install


def prepare(env: gym.Env[Any, Any], config: EnvConfig) -> gym.Env[Any, Any]:
    """Wrap an environment as ``--grayscale``, ``--resize``, ``--frame-stack`` and
    ``--ignore-action-masks`` ask.

    Raises:
        UsageError: the observations cannot be prepared like this, or the environment masks its
            actions.
    """
    if config.ignore_action_masks:
        env = without_mask(env)
    else:
        refuse_masks(env, config.env)
    stacked = config.frame_stack is not None and config.frame_stack > 1
    if config.grayscale or config.resize or stacked:
        # Gymnasium's wrappers would cast observations without a check, and expect channels last.
        env = Stored(env, config.env, copies=stacked)
    space = env.observation_space
    image = isinstance(space, gym.spaces.Box) and len(space.shape) == 3
    if config.grayscale and isinstance(space, gym.spaces.Box) and space.shape[2:] not in ((), (3,)):
        raise UsageError(
            f"--grayscale needs images with 3 channels, but {config.env} observes {kind_of(space)}."
        )
    if (config.grayscale or config.resize) and not image:
        raise UsageError(
            f"--grayscale and --resize need image observations, but {config.env} observes "
            f"{kind_of(space)}."
        )
    if config.grayscale:
        env = gym.wrappers.GrayscaleObservation(env, keep_dim=True)
    if config.resize:
        env = _resize(env, config.resize)
    if stacked:
        assert config.frame_stack is not None
        env = MergedStack(gym.wrappers.FrameStackObservation(env, config.frame_stack))
    return env


def _resize(env: gym.Env[Any, Any], size: int) -> gym.Env[Any, Any]:
    try:
        resized = gym.wrappers.ResizeObservation(env, (size, size))
    except gym.error.DependencyNotInstalled:
        raise UsageError(f"--resize needs OpenCV: {install('pixels')}.") from None
    space = resized.observation_space
    assert isinstance(space, gym.spaces.Box)
    if len(space.shape) == 3:
        return resized
    low, high = int(space.low.flat[0]), int(space.high.flat[0])
    box = gym.spaces.Box(low, high, (size, size, 1), dtype=np.uint8)
    return gym.wrappers.TransformObservation(
        resized, lambda obs: np.asarray(obs).reshape(size, size, 1), box
    )


class Stored(gym.ObservationWrapper[Any, Any, Any]):
    """A wrapper that casts observations to the types of their spaces and refuses other values.

    Types that Flatout does not store (bool, float16) become float32. Images with the channels first
    (see `channels_first`) are transposed.

    Args:
        name: the environment's name, for messages.
        copies: always return copies. A frame stack keeps the arrays, and an environment may reuse
            its own.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str, copies: bool = False) -> None:
        super().__init__(env)
        self._name, self._copies = name, copies
        self.observation_space = _stored_space(env.observation_space)

    def observation(self, observation: Any) -> Any:
        """Cast one observation, or raise an InvalidReturn if a type cannot hold its values."""
        return self._cast(observation, self.env.observation_space)

    def _cast(self, obs: Any, space: gym.Space[Any]) -> Any:
        """Cast an observation, or an entry of a nested one; `HostEnvs` refuses what does not fit
        the space's structure."""
        if isinstance(space, gym.spaces.Dict) and isinstance(obs, Mapping):
            return {
                key: self._cast(one, space.spaces[key]) if key in space.spaces else one
                for key, one in obs.items()
            }
        if isinstance(space, gym.spaces.Tuple) and isinstance(obs, tuple | list):
            inner = [*space.spaces, *[space] * (len(obs) - len(space.spaces))]
            return tuple(self._cast(one, part) for one, part in zip(obs, inner, strict=False))
        if not isinstance(space, gym.spaces.Box):
            return copy.deepcopy(obs) if self._copies else obs
        array = np.asarray(obs)
        if array.dtype.kind not in "fiub":
            return obs  # `HostEnvs` refuses observations that are not numbers
        try:
            cast = stored(array, _stored_dtype(space))
            cast = cast.copy() if self._copies and cast is array else cast
        except ValueError as error:
            raise InvalidReturn(
                f"the environment {self._name} returned an observation with {error}; correct the "
                "values, or its observation_space."
            ) from None
        transposed = channels_first(space) and cast.shape == space.shape
        return np.moveaxis(cast, 0, -1) if transposed else cast


CHANNELS, LEAST_SIDE = (1, 3, 4), 16


def channels_first(space: gym.spaces.Box) -> bool:
    """Return whether a box holds images with the channels first: a first axis of 1, 3 or 4, and at
    least 16 rows and columns."""
    first, *others = space.shape or (0,)
    return len(others) == 2 and first in CHANNELS and min(others) >= LEAST_SIDE


def _stored_dtype(space: gym.spaces.Box) -> np.dtype[Any]:
    dtype = np.dtype(space.dtype)
    small = dtype.kind == "b" or (dtype.kind == "f" and dtype.itemsize < 4)
    return np.dtype("float32") if small else dtype


def _stored_space(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return the space of the observations that `Stored` returns."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({key: _stored_space(one) for key, one in space.spaces.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([_stored_space(one) for one in space.spaces])
    if not isinstance(space, gym.spaces.Box):
        return space
    dtype, transposed = _stored_dtype(space), channels_first(space)
    if dtype == space.dtype and not transposed:
        return space
    low, high = (
        np.moveaxis(limit, 0, -1) if transposed else limit for limit in (space.low, space.high)
    )
    return gym.spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)  # type: ignore[arg-type]


class MergedStack(gym.wrappers.TransformObservation[Any, Any, Any]):
    """A wrapper that merges S frames of each box: images ``[S, H, W, c]`` to ``[H, W, S * c]``,
    others ``[S, ...]`` to vectors. Frames of other spaces keep their axis ``[S, ...]``."""

    def __init__(self, env: gym.wrappers.FrameStackObservation[Any, Any, Any]) -> None:
        space = env.observation_space
        super().__init__(env, lambda obs: _merge(obs, space), _merged_space(space))
        self.stack_size = env.stack_size


def _merged_space(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return the space of merged frames."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({key: _merged_space(one) for key, one in space.spaces.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([_merged_space(one) for one in space.spaces])
    if not isinstance(space, gym.spaces.Box):
        return space
    low, high = _merge(space.low, space), _merge(space.high, space)
    return gym.spaces.Box(low, high, dtype=space.dtype.type)  # type: ignore[union-attr]


def _merge(obs: Any, space: gym.Space[Any]) -> Any:
    """Merge the frames of an observation of a stacked `space`."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _merge(obs[key], one) for key, one in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_merge(one, part) for one, part in zip(obs, space.spaces, strict=True))
    if not isinstance(space, gym.spaces.Box):
        return obs
    stack = np.asarray(obs)
    if stack.ndim == 4:
        stack = np.moveaxis(stack, 0, 2)
        return np.ascontiguousarray(stack).reshape(*stack.shape[:2], -1)
    return stack.reshape(-1)


def kind_of(space: gym.Space[Any]) -> str:
    """Describe a space for a message: its kind and, for a box, its shape."""
    shape = f" of shape {space.shape}" if isinstance(space, gym.spaces.Box) else ""
    return f"a {type(space).__name__} space{shape}"
