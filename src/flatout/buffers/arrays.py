"""A trajectory's arrays by name and by shard: for buffers, schedules and the device sampler."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from flatout import tree
from flatout.buffers.finals import split_finals
from flatout.types import Finals, Trajectory

FINAL_OBS, FINAL_INDEX = "final_obs", "final_index"
"""The names of the arrays of `Finals`. They have no axis of environments."""

CARRY = "carry"
"""The field of the carry, whose leaves are called ``carry/0``, ``carry/1`` and so on."""

TREES = ("obs", "last_obs")
"""The fields that hold observations. The array at a path is called ``obs/path``."""


def arrays_of(trajectory: Trajectory) -> dict[str, Any]:
    """Return all arrays of a trajectory by name, including those in `extras`."""
    fields = trajectory._asdict()
    extras, finals, carry = (fields.pop(name) for name in ("extras", "finals", CARRY))
    arrays: dict[str, Any] = {
        f"{CARRY}/{number}": leaf for number, leaf in enumerate(jax.tree.leaves(carry))
    }
    for name, value in fields.items():
        if value is not None:
            arrays |= tree.named(name, value)
    return arrays | tree.named(FINAL_OBS, finals.obs) | {FINAL_INDEX: finals.index} | extras


def with_arrays(trajectory: Trajectory, arrays: dict[str, Any]) -> Trajectory:
    """Return the trajectory with its arrays replaced; `arrays` has the names of `arrays_of`."""
    extras = {name: arrays[name] for name in trajectory.extras}
    finals = Finals(tree.unnamed(FINAL_OBS, trajectory.obs, arrays), arrays[FINAL_INDEX])
    fields = {name: tree.unnamed(name, trajectory.obs, arrays) for name in TREES}
    fields |= {name: arrays[name] for name in Trajectory._fields if name in arrays}
    leaves, form = jax.tree.flatten(trajectory.carry)
    fields[CARRY] = form.unflatten(arrays[f"{CARRY}/{number}"] for number in range(len(leaves)))
    return trajectory._replace(finals=finals, extras=extras, **fields)


def env_axis(name: str) -> int | None:
    """Return the axis of environments of the array `name` of a trajectory; None for finals."""
    field = name.partition("/")[0]
    return None if field in (FINAL_OBS, FINAL_INDEX) else int(field not in ("last_obs", CARRY))


def by_env(name: str, array: np.ndarray) -> np.ndarray:
    """Return a view with environments first; the array `name` must have them."""
    return array if env_axis(name) == 0 else array.swapaxes(0, 1)


def split(trajectory: Trajectory, shards: int) -> list[Trajectory]:
    """Split a trajectory by shard. Final observations are copied, other arrays are views."""
    steps, envs = trajectory.rewards.shape
    size = envs // shards
    parts: list[Trajectory] = []
    for number, finals in enumerate(split_finals(trajectory.finals, steps, envs, shards)):
        columns = slice(number * size, (number + 1) * size)
        arrays = {
            name: array[columns] if env_axis(name) == 0 else array[:, columns]
            for name, array in arrays_of(trajectory).items()
            if env_axis(name) is not None
        }
        arrays |= tree.named(FINAL_OBS, finals.obs) | {FINAL_INDEX: finals.index}
        parts.append(with_arrays(trajectory, arrays))
    return parts


def shard_shapes(trajectory: Trajectory, shards: int, kept: int = 1) -> Trajectory:
    """Return the shapes of one shard's part of `kept` trajectories, which are joined along the
    environments. `trajectory` has the shapes of one trajectory before it is split by shard."""

    def shape_of(name: str, leaf: Any) -> jax.ShapeDtypeStruct:
        shape = list(leaf.shape)
        axis = env_axis(name) or 0
        shape[axis] = kept * (shape[axis] // shards)
        return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype)

    shapes = {name: shape_of(name, leaf) for name, leaf in arrays_of(trajectory).items()}
    return with_arrays(trajectory, shapes)
