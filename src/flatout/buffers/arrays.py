"""A trajectory's arrays by name and by shard: for buffers, schedules and the device sampler."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from flatout.buffers.finals import split_finals
from flatout.types import Finals, Trajectory

FINALS = ("final_obs", "final_index")
"""The names of the arrays of `Finals`, in its order. They have no axis of environments."""


def arrays_of(trajectory: Trajectory) -> dict[str, Any]:
    """Return all arrays of a trajectory by name, including those in `extras`."""
    fields = trajectory._asdict()
    extras, finals = fields.pop("extras"), fields.pop("finals")
    arrays = {name: array for name, array in fields.items() if array is not None}
    return arrays | dict(zip(FINALS, finals, strict=True)) | extras


def with_arrays(trajectory: Trajectory, arrays: dict[str, Any]) -> Trajectory:
    """Return the trajectory with its arrays replaced; `arrays` has the names of `arrays_of`."""
    extras = {name: arrays[name] for name in trajectory.extras}
    finals = Finals(*(arrays[name] for name in FINALS))
    fields = {n: array for n, array in arrays.items() if n not in (*extras, *FINALS)}
    return trajectory._replace(finals=finals, extras=extras, **fields)


def by_env(name: str, array: np.ndarray) -> np.ndarray:
    """Return a view with environments first. The array `name` must have them: not `FINALS`."""
    return array if name == "last_obs" else array.swapaxes(0, 1)


def split(trajectory: Trajectory, shards: int) -> list[Trajectory]:
    """Split a trajectory by shard. Final observations are copied, other arrays are views."""
    steps, envs = trajectory.rewards.shape
    size = envs // shards
    parts: list[Trajectory] = []
    for number, finals in enumerate(split_finals(trajectory.finals, steps, envs, shards)):
        columns = slice(number * size, (number + 1) * size)
        arrays = {
            name: array[columns] if name == "last_obs" else array[:, columns]
            for name, array in arrays_of(trajectory).items()
            if name not in FINALS
        }
        arrays |= dict(zip(FINALS, finals, strict=True))
        parts.append(with_arrays(trajectory, arrays))
    return parts


def shard_shapes(trajectory: Trajectory, shards: int, kept: int = 1) -> Trajectory:
    """Return the shapes of one shard's part of `kept` trajectories, which are joined along the
    environments. `trajectory` has the shapes of one trajectory before it is split by shard."""

    def shape_of(name: str, leaf: Any) -> jax.ShapeDtypeStruct:
        shape = list(leaf.shape)
        axis = 0 if name in (*FINALS, "last_obs") else 1
        shape[axis] = kept * (shape[axis] // shards)
        return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype)

    shapes = {name: shape_of(name, leaf) for name, leaf in arrays_of(trajectory).items()}
    return with_arrays(trajectory, shapes)
