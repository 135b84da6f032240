"""A trajectory's arrays: by name, by shard, and how room for final observations grows."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from flatout.types import Trajectory

FINALS = ("final_obs", "final_index")
"""The arrays of final observations, which have no axis of environments."""


def room_for(count: int, room: int) -> int:
    """The room for so many final observations: what there is, doubled until they fit.

    More room means other shapes, and so one more compilation; unused places change no result.
    """
    while room < count:
        room *= 2
    return room


def arrays_of(trajectory: Trajectory) -> dict[str, Any]:
    """Every array of a trajectory by name, those in `extras` included."""
    fields = trajectory._asdict()
    extras = fields.pop("extras")
    return {name: array for name, array in fields.items() if array is not None} | extras


def with_arrays(trajectory: Trajectory, arrays: dict[str, Any]) -> Trajectory:
    """The trajectory with these arrays, named as `arrays_of` names them."""
    extras = {name: arrays[name] for name in trajectory.extras}
    fields = {name: array for name, array in arrays.items() if name not in extras}
    return trajectory._replace(extras=extras, **fields)


def by_env(name: str, array: np.ndarray) -> np.ndarray:
    """A view of one of `arrays_of` with environments as its first axis; not for `FINALS`."""
    return array if name == "last_obs" else array.swapaxes(0, 1)


def split(trajectory: Trajectory, shards: int) -> list[Trajectory]:
    """The trajectories of each shard's environments (views), final observations sorted in."""
    steps, envs = trajectory.rewards.shape
    size = envs // shards
    used = np.flatnonzero(trajectory.final_index < steps * envs)
    row, env = np.divmod(trajectory.final_index[used], envs)
    shard, env = np.divmod(env, size)
    # One shard's episodes may all have been truncated.
    most = int(np.bincount(shard, minlength=1).max())
    room = room_for(most, len(trajectory.final_index) // shards)
    parts: list[Trajectory] = []
    for number in range(shards):
        mine = shard == number
        final_obs = np.zeros((room, *trajectory.final_obs.shape[1:]), trajectory.final_obs.dtype)
        final_index = np.full((room,), steps * size, np.int32)
        final_obs[: mine.sum()] = trajectory.final_obs[used[mine]]
        final_index[: mine.sum()] = row[mine] * size + env[mine]
        columns = slice(number * size, (number + 1) * size)
        arrays = {
            name: array[columns] if name == "last_obs" else array[:, columns]
            for name, array in arrays_of(trajectory).items()
            if name not in FINALS
        }
        finals = {"final_obs": final_obs, "final_index": final_index}
        parts.append(with_arrays(trajectory, arrays | finals))
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
