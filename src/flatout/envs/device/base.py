"""The interface of an environment written in JAX, step 5 of the data flow when it is compiled: pure
functions of one environment, which `engine.rollout` and `DeviceEnvs` map over many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flatout.types import ActionSpec, Array, Obs, ObsSpec

if TYPE_CHECKING:
    import jax

EnvState = Any
"""A pytree of arrays; its structure, shapes and dtypes are the same after every call."""
Key = Any
"""A typed JAX random key, as `jax.random.key` returns."""


@dataclass(frozen=True)
class DeviceEnv:
    """One environment as pure functions, which the caller compiles and maps over many environments.

    The environment neither resets itself nor counts time. When an episode ends, the caller keeps
    the final observation and calls `reset`. It also truncates an episode after `limit` steps.

    Attributes:
        name: the environment's name, for messages.
        obs_spec: the spec of an observation: of one array, or a dict of specs by name if `reset`
            and `step` return a dict of arrays. Names have no slashes.
        action_spec: the spec of an action.
        limit: steps after which an episode is truncated (Gymnasium's `max_episode_steps`), or None.
        reset: ``(key) -> (state, obs)``, the start of an episode.
        step: ``(state, action, key) -> (state, obs, reward, terminated, truncated)``. An action is
            an int32 scalar that counts from 0, or float32 ``[A]`` in the action space's own units.
            It is not scaled here: algorithms scale and clip it to the bounds (`algorithms.common`),
            for host and device environments. The reward is a float32 scalar, the flags are bool
            scalars. `truncated` reports an end by the rules (the patience of Snake), not by
            `limit`.
        render: ``(state) -> str or uint8 [H, W, 3]``, for `flatout eval --show` and videos, or
            None. It runs on the host.
        patience: least number of steps after which the rules may truncate an episode. It bounds how
            many final observations of truncated episodes have to be stored. None if it is unknown.
            A run fails when an episode is truncated earlier. Not needed if `step` returns a
            constant False as `truncated`, which is recognised.
        info: ``(state) -> {name: scalar}``, called with the state in which an episode ended; or
            None. It is the counterpart of a host environment's final `info`: numbers and flags,
            which are read as float32.
    """

    name: str
    obs_spec: ObsSpec = field(hash=False)
    action_spec: ActionSpec
    limit: int | None
    reset: Callable[[Key], tuple[EnvState, Obs]]
    step: Callable[[EnvState, Array, Key], tuple[EnvState, Obs, Array, Array, Array]]
    render: Callable[[EnvState], Any] | None = None
    patience: int | None = None
    info: Callable[[EnvState], dict[str, Array]] | None = None

    def __post_init__(self) -> None:
        """Sort the specs by name, as paths are sorted everywhere (see `flatout.tree`)."""
        if isinstance(self.obs_spec, dict) and all(isinstance(name, str) for name in self.obs_spec):
            object.__setattr__(self, "obs_spec", dict(sorted(self.obs_spec.items())))


def reset_key(seed: Array) -> Key:
    """Return the key of an episode's reset from its seed (uint32; see `envs.base.episode_seed`)."""
    import jax

    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), 0)


def step_key(seed: Array, t: Array) -> Key:
    """Return the key of an episode's step `t`, counted from 0, from its seed. Thus seed and
    actions determine an episode."""
    import jax

    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), t + 1)


def action_shape(env: DeviceEnv) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of one action: int32 ``[]`` or float32 ``[A]``."""
    import jax
    import numpy as np

    spec = env.action_spec
    return jax.ShapeDtypeStruct(spec.choice_shape, np.dtype(spec.choice_dtype))


def select(mask: Array, new: Array, old: Array) -> Array:
    """Return `new` where `mask` is set, else `old`. The mask covers their leading axes."""
    import jax.numpy as jnp

    return jnp.where(mask.reshape(mask.shape + (1,) * (new.ndim - mask.ndim)), new, old)
