"""The arrays of a trajectory by name and by shard, as buffers, schedules and the device sampler
read them. `TRAJECTORY_FIELDS` is the table from which their shapes, names and axes follow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from flatout import tree
from flatout.algorithms.base import (
    TRAJECTORY_FIELDS,
    TrajectoryField,
)
from flatout.engine.finals import join_finals, split_finals
from flatout.frames import MAX_AGE, stack_frames, stack_rows
from flatout.types import Array, Finals, ObservationSpec, ObsSpec, Trajectory

# --- The arrays of a trajectory by name -------------------------------------------------------


def arrays_of(trajectory: Trajectory) -> dict[str, Any]:
    """Return all arrays of a trajectory by name. A field that is a tree has the names
    ``field/path`` (`tree.named`), ``extras/log_prob`` and ``carry/0`` for example."""
    fields = trajectory._asdict()
    finals, carry = fields.pop("finals"), jax.tree.leaves(trajectory.carry)
    fields |= {"final_obs": finals.obs, "final_index": finals.index}
    fields["carry"] = {str(number): leaf for number, leaf in enumerate(carry)}
    arrays: dict[str, Any] = {}
    for name, value in fields.items():
        if value is not None:
            arrays |= tree.named(name, value)
    return arrays


def from_arrays(arrays: Mapping[str, Any]) -> Trajectory:
    """Return the trajectory to which `arrays_of` gave these names. Fields without an array are None
    or empty, and the carry is a tuple of its leaves: only the algorithm knows their form.

    Raises:
        KeyError: the index of final observations or a leaf of the carry is missing.
    """

    def below(name: str) -> dict[str, Any]:
        start = f"{name}/"
        return {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}

    whole = TRAJECTORY_FIELDS.keys() - {"extras", "carry", "final_index"}
    fields = {name: tree.found(name, arrays) for name in whole}
    leaves = below("carry")
    return Trajectory(
        finals=Finals(fields.pop("final_obs"), arrays["final_index"]),
        extras=below("extras"),
        carry=tuple(leaves[str(number)] for number in range(len(leaves))),
        **fields,
    )


def with_arrays(trajectory: Trajectory, arrays: Mapping[str, Any]) -> Trajectory:
    """Return the trajectory with its arrays replaced; `arrays` has the names of `arrays_of`."""
    carry = jax.tree.structure(trajectory.carry)
    found = from_arrays(arrays)
    return found._replace(carry=carry.unflatten(found.carry))


def field_of(name: str) -> TrajectoryField:
    """Return the field to which the array `name` belongs."""
    return TRAJECTORY_FIELDS[name.partition("/")[0]]


def env_axis(name: str) -> int | None:
    """Return the axis of environments of the array `name` of a trajectory; None for finals."""
    axes = field_of(name).axes
    return axes.index("N") if "N" in axes else None


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
        arrays |= tree.named("final_obs", finals.obs) | {"final_index": finals.index}
        parts.append(with_arrays(trajectory, arrays))
    return parts


def join(parts: Trajectory) -> Trajectory:
    """Join the trajectories of S shards, arrays ``[S, ...]``: the inverse of `split`."""
    _, steps, each = parts.rewards.shape

    def joined(name: str, leaf: np.ndarray) -> np.ndarray:
        axis = env_axis(name)
        return leaf if axis is None else join_envs(leaf, axis)

    parts = parts._replace(finals=join_finals(parts.finals, steps, each))
    return with_arrays(parts, {name: joined(name, a) for name, a in arrays_of(parts).items()})


def join_envs(array: np.ndarray, axis: int) -> np.ndarray:
    """Join the arrays of S shards, ``[S, ...]``, along the axis of environments of one of them."""
    moved = np.moveaxis(array, 0, axis)
    shards, envs = moved.shape[axis : axis + 2]
    return moved.reshape(*moved.shape[:axis], shards * envs, *moved.shape[axis + 2 :])


def split_envs(array: np.ndarray, shards: int) -> np.ndarray:
    """Split an array ``[rows, N, ...]`` by shard, ``[S, rows, N / S, ...]``. The result is always a
    copy: a device may still read it while the next trajectory overwrites `array`."""
    rows, num_envs = array.shape[:2]
    parts = array.reshape(rows, shards, num_envs // shards, *array.shape[2:])
    return np.moveaxis(parts, 1, 0).copy()


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


def find_misfit(trajectory: Trajectory, shapes: Trajectory) -> str | None:
    """Return the name of an array that differs from `shapes` in shape or dtype, or exists in only
    one of the two; None if there is none. The number of final observations may differ, but not be
    0."""
    arrays, expected = arrays_of(trajectory), arrays_of(shapes)
    most = 2 * math.prod(shapes.rewards.shape)
    for name in arrays | expected:
        array, shape = arrays.get(name), expected.get(name)
        finals = int(env_axis(name) is None)
        same = (
            array is not None
            and shape is not None
            and array.dtype == shape.dtype
            and array.shape[finals:] == shape.shape[finals:]
        )
        if finals and same:
            same = 0 < len(trajectory.finals.index) == len(arrays[name]) <= most
        if not same:
            return name
    return None


def whole_trajectory(xp: Any, spec: ObsSpec, trajectory: Trajectory) -> Trajectory:
    """Return a trajectory with whole observations, as algorithms get it, from one that stores each
    frame of a stack once. `xp` is `numpy`, or `jax.numpy` in the learner's program."""
    age, index = trajectory.age, trajectory.finals.index
    steps, num_envs = trajectory.rewards.shape
    row, env = xp.divmod(xp.minimum(index, steps * num_envs - 1), num_envs)
    used = index < steps * num_envs

    def of_last(spec: ObservationSpec, obs: Array, last: Array) -> Array:
        frames = [obs[at] for at in range(steps, len(obs))]
        return last if spec.stack == 1 else stack_frames(xp, spec, [*frames, last], age[-1])

    def of_finals(spec: ObservationSpec, obs: Array, final: Array) -> Array:
        if spec.stack == 1:
            return final
        frames = [obs[row + at, env] for at in range(1, spec.stack)]
        after = xp.minimum(age[row, env], MAX_AGE - 1) + 1
        whole = stack_frames(xp, spec, [*frames, final], after)
        return xp.where(used[:, None, None, None], whole, xp.zeros((), whole.dtype))

    obs, last = trajectory.obs, trajectory.last_obs
    return trajectory._replace(
        obs=stack_rows(xp, spec, obs, age[:-1]),
        last_obs=tree.map(of_last, spec, obs, last),
        finals=Finals(tree.map(of_finals, spec, obs, trajectory.finals.obs), index),
        age=None,
    )
