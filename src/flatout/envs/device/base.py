"""What an environment written in JAX is: two pure functions of one environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flatout.types import ActionSpec, Array, ObservationSpec

EnvState = Any
"""A pytree of arrays; its structure, shapes and dtypes are the same after every call."""
Key = Any
"""A typed JAX random key, as `jax.random.key` makes."""


@dataclass(frozen=True)
class DeviceEnv:
    """One environment as pure functions, which its caller compiles and maps over many.

    Nothing resets itself: the caller sees that an episode ended, keeps its final observation and
    calls `reset`. Nor is time counted here: the caller truncates an episode after `limit` steps.

    Attributes:
        name: for messages.
        obs_spec: what each observation is.
        action_spec: what each action is.
        limit: steps after which an episode is truncated, or None. Gymnasium's `max_episode_steps`.
        reset: ``(key) -> (state, obs)``, the start of an episode.
        step: ``(state, action, key) -> (state, obs, reward, terminated, truncated)``. An action is
            an int32 scalar that counts from 0, or float32 ``[A]`` in the action space's own units.
            Algorithms scale and clip to its bounds (`algorithms.common`), for host and device
            environments alike; nothing is scaled here. The reward is a float32 scalar, the flags
            are bool scalars. `truncated` is what the rules cut (the patience of Snake), without
            `limit`.
        render: ``(state) -> str or uint8 [H, W, 3]``, for `flatout watch` and videos, or None. It
            runs on the host.
        patience: steps before which the rules truncate no episode, if they may; None where `step`
            tells (a `truncated` that is always False), or nothing is known. The last observations
            of truncated episodes are kept: this bounds how many there can be.
        info: ``(state) -> {name: scalar}`` of the state with which an episode ended: what a host's
            environment tells in its final `info`. Numbers and flags, as float32; or None.
    """

    name: str
    obs_spec: ObservationSpec
    action_spec: ActionSpec
    limit: int | None
    reset: Callable[[Key], tuple[EnvState, Array]]
    step: Callable[[EnvState, Array, Key], tuple[EnvState, Array, Array, Array, Array]]
    render: Callable[[EnvState], Any] | None = None
    patience: int | None = None
    info: Callable[[EnvState], dict[str, Array]] | None = None


def reset_key(seed: Array) -> Key:
    """The key of an episode's reset, from its seed (uint32; see `envs.base.episode_seed`)."""
    import jax

    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), 0)


def step_key(seed: Array, t: Array) -> Key:
    """The key of an episode's step t, from 0. So an episode follows from its seed and actions."""
    import jax

    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), t + 1)
