"""A maze that needs a memory, in JAX: ``maze_env:t_maze``."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flatout import DeviceEnv
from flatout.types import DiscreteSpec, ObservationSpec


class Walker(NamedTuple):
    """Where somebody is in the corridor, and whether the goal is up (1) or down (0)."""

    place: jax.Array
    goal: jax.Array


FORWARD, BACK, UP, DOWN = range(4)


def t_maze(length: int = 20) -> DeviceEnv:
    """Return the T-maze of Bakker (2002): a sign at the start of a corridor says whether the goal
    is up or down at its other end, `length` steps away.

    The observation is the sign (1 for up, -1 for down, 0 away from the start) and whether the
    junction is reached. At the junction, the right turn gives 4 and the wrong one -0.1, and both
    end the episode; a step into a wall costs 0.1. Without memory the mean return is at most 1.95.
    """

    def observe(walker: Walker) -> jax.Array:
        sign = jnp.where(walker.place == 0, 2.0 * walker.goal - 1.0, 0.0)
        return jnp.stack([sign, (walker.place == length).astype(jnp.float32)])

    def reset(key: Any) -> tuple[Walker, jax.Array]:
        walker = Walker(jnp.int32(0), jax.random.bernoulli(key).astype(jnp.int32))
        return walker, observe(walker)

    def step(walker: Walker, action: Any, key: Any) -> tuple[Any, ...]:
        turns = (action == UP) | (action == DOWN)
        over = turns & (walker.place == length)
        right = over & ((action == UP) == (walker.goal == 1))
        move = jnp.where(action == FORWARD, 1, jnp.where(action == BACK, -1, 0))
        place = jnp.clip(walker.place + move, 0, length)
        stayed = ~over & (place == walker.place)
        moved = walker._replace(place=place)
        reward = jnp.where(right, 4.0, jnp.where(over | stayed, -0.1, 0.0))
        return moved, observe(moved), reward, over, jnp.asarray(False)

    spec = ObservationSpec((2,), "float32")
    return DeviceEnv(f"t_maze_{length}", spec, DiscreteSpec(4), 4 * length, reset, step)
