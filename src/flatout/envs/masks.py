"""Environments that mask their actions: they are refused, or their masks are ignored on request.

No policy in Flatout honours a mask. If a mask were ignored silently, training would use actions
that the environment never took. `envs.preparation` and `HostEnvs` call this.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from flatout.errors import UsageError

MASKS = ("action_mask", "action_masks")
"""The keys of masks in an info or a Dict observation."""


def masks_refused(name: str, where: str) -> UsageError:
    """Return the error for an environment that masks its actions; `where` names the mask."""
    return UsageError(
        f"{name} masks its actions ({where}), but policies here choose among all of them: pass "
        "--ignore-action-masks (in Python ignore_action_masks=True) to train as if it did not."
    )


def refuse_masks(env: gym.Env[Any, Any], name: str) -> None:
    """Refuse masks that are visible without a step: a method `action_masks`, or a mask in a Dict
    observation. `HostEnvs` refuses masks in an info.

    Raises:
        UsageError: the environment, or one that it wraps, masks its actions.
    """
    inner: Any = env
    while inner is not None:
        if callable(attribute(inner, "action_masks")):
            raise masks_refused(name, f"{type(inner).__name__}.action_masks()")
        if key := _mask_key(attribute(inner, "observation_space")):
            raise masks_refused(name, f"observation[{key!r}]")
        inner = inner.env if isinstance(inner, gym.Wrapper) else None


def attribute(env: Any, name: str) -> Any:
    """Return an attribute of a user's environment; None if it is missing or its look-up raises."""
    try:
        return getattr(env, name, None)
    except Exception:
        return None


def without_mask(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Remove the mask from a Dict observation; one other entry alone becomes the observation.
    Environments with other observations are returned unchanged."""
    space = env.observation_space
    if not _mask_key(space):
        return env
    assert isinstance(space, gym.spaces.Dict)
    rest = [key for key in space if key not in MASKS]
    if len(rest) == 1:
        return gym.wrappers.TransformObservation(env, lambda obs: obs[rest[0]], space[rest[0]])
    kept = gym.spaces.Dict({key: space[key] for key in rest})
    return gym.wrappers.TransformObservation(env, lambda obs: {key: obs[key] for key in rest}, kept)


def _mask_key(space: Any) -> str:
    """Return the key of the mask in a Dict space, or an empty string."""
    names = [key for key in MASKS if isinstance(space, gym.spaces.Dict) and key in space.spaces]
    return names[0] if names else ""
