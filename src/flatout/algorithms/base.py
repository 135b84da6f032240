"""What an algorithm is to the rest of the house."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

State = Any
Params = Any


@dataclass(frozen=True)
class Algorithm:
    """Pure functions and the data they declare. Nothing here names a device or an environment.

    Attributes:
        name: the algorithm's name.
        init: ``raw key uint32[2] -> state``; everything that learning changes, a pytree of NumPy
            arrays: drawn on the host, it is the same on every device.
        shapes: the state's shapes and dtypes.
        noise: ``(key, env, step) -> noise`` for one environment and one of its steps: what acting
            draws, as a pure function of (seed, environment, step), so that it may be computed
            anywhere and in blocks without changing a single draw.
        act: ``(params, obs[B, ...], carry, noise[B, ...] | None) -> action[B, ...], carry,
            extras``; without noise it acts greedily. `carry` is empty for feed-forward networks.
        update: ``(state, trajectory, key) -> state, metrics, priorities | None``; all the gradient
            steps that the trajectory pays for. The key is the learning stream's, the same every
            time; the state's own counter is folded into it.
        actor: ``state -> params``, only what `act` needs, normaliser statistics included.
        horizon: T, steps per environment in a fresh trajectory.
        episodes: whole episodes per environment and trajectory (padded to T), or None.
        metrics: the names of the scalars that `update` returns.
    """

    name: str
    init: Callable[[np.ndarray], State]
    shapes: State
    noise: Callable[[jax.Array, jax.Array, jax.Array], Any]
    act: Callable[[Params, jax.Array, Any, Any], tuple[jax.Array, Any, dict[str, jax.Array]]]
    update: Callable[[State, Any, jax.Array], tuple[State, dict[str, jax.Array], Any]]
    actor: Callable[[State], Params]
    horizon: int
    episodes: int | None
    metrics: tuple[str, ...]


def wrap_key(data: Any) -> jax.Array:
    """A typed random key from its raw data, uint32 ``[2]`` (threefry)."""
    return jax.random.wrap_key_data(data, impl="threefry2x32")


def raw_key(seed: int, stream: int) -> np.ndarray:
    """Raw key data, uint32 ``[2]``, of one of a run's independent random streams."""
    return np.random.SeedSequence(seed, spawn_key=(stream,)).generate_state(2, np.uint32)


def shapes_of(tree: Any) -> Any:
    """The same pytree with `jax.ShapeDtypeStruct` leaves."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
