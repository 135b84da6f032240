"""Device environments for tests."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from flatout.envs.device.base import DeviceEnv
from flatout.types import DiscreteSpec, ObservationSpec


def broken() -> DeviceEnv:
    """Its seventh observation is NaN."""

    def reset(key: Any) -> Any:
        return jnp.zeros((), jnp.int32), jnp.zeros(2)

    def step(state: jax.Array, action: Any, key: Any) -> Any:
        obs = jnp.where(state > 6, jnp.nan, state.astype(jnp.float32)) * jnp.ones(2)
        return state + 1, obs, jnp.ones(()), jnp.zeros((), bool), jnp.zeros((), bool)

    return DeviceEnv("broken", ObservationSpec((2,), "float32"), DiscreteSpec(2), 20, reset, step)
