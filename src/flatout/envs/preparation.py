"""Preparation of observations with Gymnasium's wrappers, when `envs.make` makes an environment:
grey images, other sizes, frame stacks."""

from __future__ import annotations

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
    stacked = config.frame_stack is not None and config.frame_stack > 1
    if isinstance(space, gym.spaces.Box) and (config.grayscale or config.resize or stacked):
        # Gymnasium's wrappers would cast observations without a check.
        env = Stored(env, config.env, copies=stacked)
    if config.grayscale:
        env = gym.wrappers.GrayscaleObservation(env, keep_dim=True)
    if config.resize:
        env = _resize(env, config.resize)
    if stacked:
        assert config.frame_stack is not None
        if not isinstance(space, gym.spaces.Box):
            raise UsageError(
                f"--frame-stack needs Box observations, but {config.env} observes {kind_of(space)}."
            )
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
    """A wrapper that casts observations to the type of their space and refuses other values.

    Types that Flatout does not store (bool, float16) become float32.

    Args:
        name: the environment's name, for messages.
        copies: always return a copy. A frame stack keeps the arrays, and an environment may reuse
            its own.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str, copies: bool = False) -> None:
        super().__init__(env)
        self._copies = copies
        space = np.dtype(env.observation_space.dtype)
        small = space.kind == "b" or (space.kind == "f" and space.itemsize < 4)
        self._name, self._dtype = name, "float32" if small else str(space)
        if small:
            box: Any = env.observation_space
            low, high = (limit.astype(np.float32) for limit in (box.low, box.high))
            self.observation_space = gym.spaces.Box(low, high, dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        """Cast one observation, or raise an InvalidReturn if the type cannot hold its values."""
        array = np.asarray(observation)
        if array.dtype.kind not in "fiub":
            return observation  # `HostEnvs` refuses observations that are not numbers
        try:
            cast = stored(array, self._dtype)
            return cast.copy() if self._copies and cast is array else cast
        except ValueError as error:
            raise InvalidReturn(
                f"the environment {self._name} returned an observation with {error}; correct the "
                "values, or its observation_space."
            ) from None


class MergedStack(gym.wrappers.TransformObservation[Any, Any, Any]):
    """A wrapper that merges S frames: images ``[S, H, W, c]`` to ``[H, W, S * c]``, vectors
    ``[S, D]`` to ``[S * D]``."""

    def __init__(self, env: gym.wrappers.FrameStackObservation[Any, Any, Any]) -> None:
        space = env.observation_space
        assert isinstance(space, gym.spaces.Box)
        box = gym.spaces.Box(_merge(space.low), _merge(space.high), dtype=space.dtype.type)  # type: ignore[union-attr]
        super().__init__(env, _merge, box)
        self.stack_size = env.stack_size


def _merge(obs: Any) -> np.ndarray:
    stack = np.asarray(obs)
    if stack.ndim == 4:
        stack = np.moveaxis(stack, 0, 2)
        return np.ascontiguousarray(stack).reshape(*stack.shape[:2], -1)
    return stack.reshape(-1)


def kind_of(space: gym.Space[Any]) -> str:
    """Describe a space for a message: its kind and, for a box, its shape."""
    shape = f" of shape {space.shape}" if isinstance(space, gym.spaces.Box) else ""
    return f"a {type(space).__name__} space{shape}"
