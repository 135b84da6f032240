"""Small device environments for tests: correct ones, a faulty one, and factories that fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from flatout import DeviceEnv
from flatout.types import ContinuousSpec, DiscreteSpec, ObservationSpec


def corridor(length: int = 5, limit: int | None = 20, patience: int = 1000) -> DeviceEnv:
    """Make a corridor: walk right (action 1) from a random cell to the end. One step in eight slips
    back. An episode is truncated after `patience` steps by the rules, or by `limit`."""

    def observe(state: Any) -> Any:
        return jnp.stack([state["cell"] / length, state["walked"] / 100]).astype(jnp.float32)

    def reset(key: Any) -> tuple[Any, Any]:
        state = {"cell": jax.random.randint(key, (), 0, length - 1), "walked": jnp.int32(0)}
        return state, observe(state)

    def step(state: Any, action: Any, key: Any) -> tuple[Any, ...]:
        slips = jax.random.uniform(key) < 0.125
        cell = jnp.clip(state["cell"] + jnp.where((action == 1) & ~slips, 1, -1), 0, length - 1)
        state = {"cell": cell, "walked": state["walked"] + 1}
        there = cell == length - 1
        tired = state["walked"] >= patience
        return state, observe(state), there.astype(jnp.float32), there, tired & ~there

    def render(state: Any) -> str:
        return "." * int(state["cell"]) + "@" + "." * (length - 1 - int(state["cell"]))

    def info(state: Any) -> dict[str, Any]:
        return {"is_success": state["cell"] == length - 1, "walked": state["walked"]}

    spec = ObservationSpec((2,), "float32")
    return DeviceEnv("corridor", spec, DiscreteSpec(2), limit, reset, step, render, info=info)


def hasty() -> DeviceEnv:
    """Make a corridor that truncates episodes before the patience that it declares."""
    return replace(corridor(length=50, limit=None, patience=3), patience=1000)


def pushed(limit: int = 10) -> DeviceEnv:
    """Make a point in the plane that two forces, a box [2, 1] of actions, push to the origin."""

    def reset(key: Any) -> tuple[Any, Any]:
        place = jax.random.normal(key, (2,))
        return place, place

    def step(place: Any, action: Any, key: Any) -> tuple[Any, ...]:
        place = place + action * jnp.array([0.1, 0.2])
        return place, place, -jnp.abs(place).sum(), jnp.asarray(False), jnp.asarray(False)

    action = ContinuousSpec((2, 1), (-1.0, -2.0), (1.0, 2.0))
    return DeviceEnv("pushed", ObservationSpec((2,), "float32"), action, limit, reset, step)


def number() -> int:
    """Return an int instead of an environment."""
    return 3


def raising() -> DeviceEnv:
    """Raise an exception instead of making an environment."""
    raise RuntimeError("no board")


NOT_CALLABLE = 7


def broken() -> DeviceEnv:
    """Make an environment whose observations are NaN from the eighth step of an episode on."""

    def reset(key: Any) -> tuple[Any, Any]:
        return jnp.zeros((), jnp.int32), jnp.zeros(2)

    def step(state: jax.Array, action: Any, key: Any) -> tuple[Any, ...]:
        obs = jnp.where(state > 6, jnp.nan, state.astype(jnp.float32)) * jnp.ones(2)
        return state + 1, obs, jnp.ones(()), jnp.zeros((), bool), jnp.zeros((), bool)

    return DeviceEnv("broken", ObservationSpec((2,), "float32"), DiscreteSpec(2), 20, reset, step)
