"""A trajectory's arrays: by name, and by shard."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from flatout.buffers.finals import divided
from flatout.types import Finals, Trajectory

FINALS = ("final_obs", "final_index")
"""The names of `Finals`' arrays, which have no axis of environments, in its order."""


def arrays_of(trajectory: Trajectory) -> dict[str, Any]:
    """Every array of a trajectory by name, those in `extras` included."""
    fields = trajectory._asdict()
    extras, finals = fields.pop("extras"), fields.pop("finals")
    arrays = {name: array for name, array in fields.items() if array is not None}
    return arrays | {"final_obs": finals.obs, "final_index": finals.index} | extras


def with_arrays(trajectory: Trajectory, arrays: dict[str, Any]) -> Trajectory:
    """The trajectory with these arrays, named as `arrays_of` names them."""
    extras = {name: arrays[name] for name in trajectory.extras}
    finals = Finals(*(arrays[name] for name in FINALS))
    fields = {n: array for n, array in arrays.items() if n not in (*extras, *FINALS)}
    return trajectory._replace(finals=finals, extras=extras, **fields)


def by_env(name: str, array: np.ndarray) -> np.ndarray:
    """A view of one of `arrays_of` with environments as its first axis; not for `FINALS`."""
    return array if name == "last_obs" else array.swapaxes(0, 1)


def split(trajectory: Trajectory, shards: int) -> list[Trajectory]:
    """The trajectories of each shard's environments: views, but for final observations."""
    steps, envs = trajectory.rewards.shape
    size = envs // shards
    parts: list[Trajectory] = []
    for number, finals in enumerate(divided(trajectory.finals, steps, envs, shards)):
        columns = slice(number * size, (number + 1) * size)
        arrays = {
            name: array[columns] if name == "last_obs" else array[:, columns]
            for name, array in arrays_of(trajectory).items()
            if name not in FINALS
        }
        arrays |= {"final_obs": finals.obs, "final_index": finals.index}
        parts.append(with_arrays(trajectory, arrays))
    return parts


def shard_shapes(trajectory: Trajectory, shards: int, kept: int = 1) -> Trajectory:
    """The shapes of one shard's trajectories, of all environments' shapes; of `kept` such
    trajectories side by side."""

    def shaped(name: str, leaf: Any) -> jax.ShapeDtypeStruct:
        shape = list(leaf.shape)
        axis = 0 if name in (*FINALS, "last_obs") else 1
        shape[axis] = kept * (shape[axis] // shards)
        return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype)

    shapes = {name: shaped(name, leaf) for name, leaf in arrays_of(trajectory).items()}
    return with_arrays(trajectory, shapes)
