"""Environments that say which actions may be taken: refused, or played as if they did not.

No policy here honours a mask, and one that is ignored without a word trains on actions that were
never taken.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from flatout.errors import UsageError

MASKS = ("action_mask", "action_masks")
"""What masks are called in an info or a Dict observation."""


def masks_refused(name: str, where: str) -> UsageError:
    """The sentence for an environment that masks its actions, and where it does."""
    return UsageError(
        f"{name} masks its actions ({where}), but policies here choose among all of them: pass "
        "--ignore-action-masks (in Python ignore_action_masks=True) to train as if it did not."
    )


def refuse_masks(env: gym.Env[Any, Any], name: str) -> None:
    """Refuse what can be seen without a step: a method, or a mask beside the observation.

    Raises:
        UsageError: the environment, or one that it wraps, masks its actions.
    """
    inner: Any = env
    while inner is not None:
        if callable(attribute(inner, "action_masks")):
            raise masks_refused(name, f"{type(inner).__name__}.action_masks()")
        if key := _key(attribute(inner, "observation_space")):
            raise masks_refused(name, f"observation[{key!r}]")
        inner = inner.env if isinstance(inner, gym.Wrapper) else None


def attribute(env: Any, name: str) -> Any:
    """An attribute of a user's environment, or None; its ``__getattr__`` may raise anything."""
    try:
        return getattr(env, name, None)
    except Exception:
        return None


def without_mask(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """The environment without the mask that lies beside its observation, where one does."""
    space = env.observation_space
    if not _key(space):
        return env
    assert isinstance(space, gym.spaces.Dict)
    rest = [key for key in space if key not in MASKS]
    if len(rest) != 1:
        return env  # still a Dict, which is refused as one
    return gym.wrappers.TransformObservation(env, lambda obs: obs[rest[0]], space[rest[0]])


def _key(space: Any) -> str:
    """What the mask in a Dict space is called, or an empty string."""
    names = [key for key in MASKS if isinstance(space, gym.spaces.Dict) and key in space.spaces]
    return names[0] if names else ""
