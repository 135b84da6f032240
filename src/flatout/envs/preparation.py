"""Preparation of observations with Gymnasium's wrappers, when `envs.make` makes an environment:
grey images, other sizes, frame stacks."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from flatout import tree
from flatout.casts import stored
from flatout.config.schema import EnvConfig
from flatout.envs.device.on_host import OneDevice
from flatout.envs.mask_places import refuse_unread, refuse_unread_device, visible_masks
from flatout.envs.masks import MaskTaker, WithMask, unmasked_device, without_mask
from flatout.envs.spaces import (
    WORDS,
    action_spec,
    array_of,
    channels_first,
    flat_spaces,
    flattened,
    in_range,
    is_text,
    kind_of,
    observation_spec,
    structure,
)
from flatout.errors import InvalidReturn, UsageError
from flatout.installing import install


def prepare(
    env: gym.Env[Any, Any], config: EnvConfig, info_masks: bool = False
) -> gym.Env[Any, Any]:
    """Wrap an environment as ``--grayscale``, ``--resize``, ``--frame-stack`` and
    ``--ignore-action-masks`` ask. If it masks its actions, observations get the mask as an entry.

    Args:
        info_masks: whether its infos hold masks.

    Raises:
        UsageError: the observations cannot be prepared like this, the actions have no choices that
            a mask could forbid, or a mask is where it would not be obeyed.
    """
    if isinstance(env, OneDevice) and not is_prepared(config):
        if not config.ignore_action_masks:
            refuse_unread_device(env.device)
            return env  # its spec says which entry is the mask
        return OneDevice(unmasked_device(env.device), env.render_mode)
    if config.ignore_action_masks:
        return _prepared(without_mask(env), config)
    if not info_masks and not visible_masks(env):
        refuse_unread(env.observation_space, config.env)
        return _prepared(env, config)
    actions = action_spec(env.action_space, config.env)
    taker = MaskTaker(env, actions, info_masks, config.env)
    return WithMask(_prepared(taker, config), taker)


def _prepared(env: gym.Env[Any, Any], config: EnvConfig) -> gym.Env[Any, Any]:
    stacked = _is_stacked(config)
    if is_prepared(config):
        # Gymnasium's wrappers would cast observations without a check, and expect channels last.
        env = Stored(env, config.env, copies=stacked)
    space = env.observation_space
    if config.grayscale and isinstance(space, gym.spaces.Box) and space.shape[2:] not in ((), (3,)):
        raise UsageError(
            f"--grayscale needs images with 3 channels, but {config.env} observes {kind_of(space)}."
        )
    if config.grayscale or config.resize:
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 3:
            raise UsageError(
                f"--grayscale and --resize need image observations, but {config.env} observes "
                f"{kind_of(space)}."
            )
        if space.dtype != np.uint8 or space.low.any() or (space.high != 255).any():
            raise UsageError(
                f"--grayscale and --resize need images of type uint8 from 0 to 255, but "
                f"{config.env} observes {kind_of(space)} and type {space.dtype} from "
                f"{space.low.min():g} to {space.high.max():g}: convert it in a wrapper."
            )
    if config.grayscale:
        env = gym.wrappers.GrayscaleObservation(env, keep_dim=True)
    if config.resize:
        env = _resize(env, config.resize)
    if stacked:
        assert config.frame_stack is not None
        env = MergedStack(gym.wrappers.FrameStackObservation(env, config.frame_stack))
    return env


def is_prepared(config: EnvConfig) -> bool:
    """Return whether the settings change images or stack observations."""
    return config.grayscale or config.resize is not None or _is_stacked(config)


def _is_stacked(config: EnvConfig) -> bool:
    return config.frame_stack is not None and config.frame_stack > 1


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

    Attributes:
        given: the spec of the observations before this wrapper.

    Raises:
        UsageError: Flatout does not support the observation space.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str, copies: bool = False) -> None:
        super().__init__(env)
        self._name, self._copies = name, copies
        self.given = spec = observation_spec(env.observation_space, name)
        self._nesting = structure(spec)
        dtypes = {path: _stored_dtype(s) for path, s in flat_spaces(env.observation_space, name)}
        self._leaves = {path: (leaf, dtypes[path]) for path, leaf in tree.items(spec)}
        self.observation_space = _stored_space(env.observation_space)

    def observation(self, observation: Any) -> Any:
        """Cast one observation, or raise an InvalidReturn if it does not fit the space."""
        if self._nesting is None:
            return self._cast("", observation)
        try:
            given = dict(flattened(observation, self._nesting))
        except ValueError as error:
            raise self._refused("", error) from None
        arrays = {path: self._cast(path, given[path]) for path in self._leaves}
        return _nested(arrays, self.env.observation_space)

    def _cast(self, path: str, obs: Any) -> np.ndarray:
        """Cast one array of an observation."""
        spec, dtype = self._leaves[path]
        try:
            array = array_of(obs, spec)
            cast = stored(in_range(array, spec), dtype)
        except ValueError as error:
            raise self._refused(path, error) from None
        cast = cast.copy() if self._copies and cast is array else cast
        return np.moveaxis(cast, 0, -1) if spec.channels_first else cast

    def _refused(self, path: str, error: ValueError) -> InvalidReturn:
        what = f"the observation {path!r}" if path else "an observation"
        return InvalidReturn(
            f"the environment {self._name} returned {what} with {error}; correct the values, or "
            "its observation_space."
        )


def _nested(arrays: dict[str, np.ndarray], space: gym.Space[Any], path: str = "") -> Any:
    """Return the arrays by path as an observation of a nested space."""
    if isinstance(space, gym.spaces.Dict):
        return {
            key: _nested(arrays, one, tree.joined(path, key)) for key, one in space.spaces.items()
        }
    if isinstance(space, gym.spaces.Tuple):
        inner = enumerate(space.spaces)
        return tuple(_nested(arrays, one, tree.joined(path, str(index))) for index, one in inner)
    return arrays[path]


def _stored_dtype(space: gym.Space[Any]) -> np.dtype[Any]:
    if is_text(space):
        return np.dtype("uint8")
    dtype = np.dtype(space.dtype)
    small = dtype.kind == "b" or (dtype.kind == "f" and dtype.itemsize < 4)
    return np.dtype("float32") if small else dtype


def _stored_space(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return the space of the observations that `Stored` returns."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({key: _stored_space(one) for key, one in space.spaces.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([_stored_space(one) for one in space.spaces])
    if is_text(space):  # counts of words, which are small: networks do not scale them
        return gym.spaces.Box(0, 1, (WORDS,), np.uint8)
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
    """A wrapper that merges S frames of each array: images ``[S, H, W, c]`` to ``[H, W, S * c]``,
    other boxes and bits ``[S, ...]`` to vectors. Categories keep their axis of frames."""

    def __init__(self, env: gym.wrappers.FrameStackObservation[Any, Any, Any]) -> None:
        space, size = env.env.observation_space, env.stack_size
        super().__init__(env, lambda obs: _merge(obs, space), _merged_space(space, size))
        self.stack_size = size


def _merged_space(space: gym.Space[Any], size: int) -> gym.Space[Any]:
    """Return the space of `size` merged frames of a space."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({key: _merged_space(one, size) for key, one in space.spaces.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([_merged_space(one, size) for one in space.spaces])

    def merged(values: Any) -> np.ndarray:
        return _merge(np.stack([values] * size), space)

    if isinstance(space, gym.spaces.Discrete):
        return gym.spaces.MultiDiscrete(merged(space.n), start=merged(space.start))
    if isinstance(space, gym.spaces.MultiDiscrete):
        return gym.spaces.MultiDiscrete(merged(space.nvec), start=merged(space.start))
    if isinstance(space, gym.spaces.MultiBinary):
        return gym.spaces.MultiBinary(merged(np.zeros(space.shape)).shape)
    assert isinstance(space, gym.spaces.Box)
    low, high = merged(space.low), merged(space.high)
    return gym.spaces.Box(low, high, dtype=space.dtype.type)  # type: ignore[union-attr]


def _merge(obs: Any, space: gym.Space[Any]) -> Any:
    """Merge the frames of an observation, or of an entry of a nested one, of a space."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _merge(obs[key], one) for key, one in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_merge(one, part) for one, part in zip(obs, space.spaces, strict=True))
    stack = np.asarray(obs)
    if not isinstance(space, gym.spaces.Box | gym.spaces.MultiBinary):
        return stack
    if stack.ndim == 4:
        stack = np.moveaxis(stack, 0, 2)
        return np.ascontiguousarray(stack).reshape(*stack.shape[:2], -1)
    return stack.reshape(-1)


def stack_of(env: gym.Env[Any, Any]) -> int:
    """Return the number of frames that `prepare` stacked, padded with the first frame."""
    inner = env.env if isinstance(env, WithMask) else env
    return inner.stack_size if isinstance(inner, MergedStack) else 1
