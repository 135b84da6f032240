"""Where environments give masks of actions: an entry of their Dict observation, their infos, or a
method `action_masks`, as in PettingZoo, Gymnasium and sb3-contrib.

`envs.masks` reads them there. A mask in another place is refused, because nothing would obey it.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import getattr_static
from typing import Any

import gymnasium as gym

from flatout.actions import choices
from flatout.envs.deadline import DeadlineExceeded
from flatout.envs.device.base import DeviceEnv
from flatout.errors import EnvironmentFailure, Interrupt, UsageError, one_line, short
from flatout.tree import joined

MASK, PLAIN = "action_mask", "observation"
"""The keys of the mask, and of an observation that is not a dict itself, in what `WithMask` gives.
"""

MASKS = (MASK, "action_masks")
"""The keys of masks in an info or a Dict observation."""

IGNORE = "pass --ignore-action-masks (in Python ignore_action_masks=True) to train without masks"


def attribute(env: Any, name: str) -> Any:
    """Return an attribute of a user's environment; None if it is missing or its look-up raises."""
    try:
        return getattr(env, name, None)
    except (Exception, SystemExit):
        return None


def visible_masks(env: gym.Env[Any, Any]) -> list[str]:
    """Return where an environment gives masks, as far as this is visible without a reset: an entry
    of its observation, or a method of its own or of an environment that it wraps.

    Raises:
        UsageError: `action_masks` is no method, or a property that raises.
    """
    key = mask_key(attribute(env, "observation_space"))
    found = [f"observation[{key!r}]"] if key else []
    owner = mask_owner(env)
    return found if owner is None else [*found, f"{type(owner).__name__}.action_masks()"]


def info_masks(info: Any) -> dict[str, Any]:
    """Return the masks in an info, by their places."""
    if not isinstance(info, Mapping):
        return {}
    return {f"info[{key!r}]": info[key] for key in MASKS if key in info}


def resets_with_mask(env: gym.Env[Any, Any], name: str) -> bool:
    """Return whether the info of an environment's first reset holds a mask. An exception of the
    environment is ignored: it meets the check of its first steps again."""
    try:
        _, info = env.reset(seed=0)
    except DeadlineExceeded:
        raise EnvironmentFailure(
            f"{name} did not finish its first reset in time; if it needs longer, raise "
            "worker_timeout (--worker-timeout)."
        ) from None
    except (Interrupt, KeyboardInterrupt):
        raise
    except BaseException:  # a user's environment may raise anything
        return False
    return bool(info_masks(info))


def mask_key(space: Any) -> str:
    """Return the key of the mask in a Dict space with other entries, or an empty string."""
    if not isinstance(space, gym.spaces.Dict) or len(space.spaces) < 2:
        return ""
    return next((key for key in MASKS if key in space.spaces), "")


def mask_owner(env: Any) -> Any:
    """Return the outermost environment or wrapper that has a method `action_masks`, or None.

    Raises:
        UsageError: one has an attribute of this name that is no method, or a property that raises.
    """
    while env is not None:
        if callable(_mask_method(env)):
            return env
        env = env.env if isinstance(env, gym.Wrapper) else None
    return None


def _mask_method(env: Any) -> Any:
    """Return the attribute `action_masks` of an environment, or None; raises as `mask_owner`."""
    if getattr_static(env, MASKS[1], None) is None:
        return attribute(env, MASKS[1])  # a `__getattr__` may raise anything
    what = f"{type(env).__name__}.{MASKS[1]}"
    try:
        found = env.action_masks
    except (Exception, SystemExit) as error:  # a user's property may raise anything
        raise UsageError(
            f"{what} raised {type(error).__name__}: {one_line(error).rstrip('.')}; correct it, or "
            f"{IGNORE}."
        ) from error
    if found is not None and not callable(found):
        raise UsageError(
            f"{what} is {short(found)}, and no method: make it a method that returns the mask of "
            f"each step, or {IGNORE}."
        )
    return found


def refuse_unread(space: gym.Space[Any], name: str) -> None:
    """Refuse an observation with a mask that would be an ordinary input: one that is nested, or
    without another entry next to it.

    Args:
        space: of the observations.
        name: the environment's name, for messages.

    Raises:
        UsageError: there is such a mask; the message names its path.
    """
    for path in _mask_paths(space):
        alone = "" if "/" in path else ", without another entry next to it"
        raise UsageError(
            f"{name} has a mask in its observation at {path!r}{alone}, where it would not be "
            f"obeyed: make it an entry of the outermost Dict, next to others, or {IGNORE}."
        )


def refuse_unread_device(env: DeviceEnv) -> None:
    """Refuse a device environment with an entry that is called a mask, but has another size; see
    `masked_device`.

    Raises:
        UsageError: there is one.
    """
    spec, size = env.obs_spec, sum(choices(env.action_spec))
    for key in MASKS:
        if isinstance(spec, dict) and key in spec and not spec[key].mask:
            raise UsageError(
                f"{env.name} has a mask in its observation, {key!r} of shape "
                f"{list(spec[key].shape)}, which would not be obeyed: a mask is the entry {MASK!r} "
                f"with {size} numbers for the {env.action_spec.kind} actions, next to other "
                f"entries; correct it, or {IGNORE}."
            )


def _mask_paths(space: Any, prefix: str = "") -> list[str]:
    """Return the paths of entries that are called as masks are."""
    if isinstance(space, gym.spaces.Dict):
        entries: dict[str, Any] = {str(key): inner for key, inner in space.spaces.items()}
    elif isinstance(space, gym.spaces.Tuple):
        entries = {str(number): inner for number, inner in enumerate(space.spaces)}
    else:
        return []
    found = [joined(prefix, key) for key in entries if key in MASKS]
    return found + [
        path for key, inner in entries.items() for path in _mask_paths(inner, joined(prefix, key))
    ]
