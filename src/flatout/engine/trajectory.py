"""Step 6 of the data flow, inline: a trajectory's arrays.

`RolloutBuffer` allocates them once, and the sampler writes them step by step. Buffers, schedules
and the device sampler read them by name and by shard. `TRAJECTORY_FIELDS` is the table from which
their shapes, names and axes follow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from flatout import tree
from flatout.algorithms.base import (
    TRAJECTORY_FIELDS,
    RolloutSpec,
    TrajectoryField,
    WrittenBy,
)
from flatout.engine.finals import join_finals, pack_finals, split_finals
from flatout.envs.base import invalid_return
from flatout.packing import OutputLayout
from flatout.types import Finals, Obs, ObsSpec, Trajectory

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
    one of the two; None if there is none. The number of final observations may differ."""
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
            same = len(trajectory.finals.index) == len(arrays[name]) <= most
        if not same:
            return name
    return None


# --- Allocation -------------------------------------------------------------------------------


def step_arrays(
    rollout: RolloutSpec,
    num_envs: int,
    spec: ObsSpec,
    writers: Sequence[WrittenBy] = ("envs", "sampler"),
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype of the arrays that samplers on the host write step by step, by name.

    Observations have T + 1 rows, the last of which is `Trajectory.last_obs`.

    Args:
        spec: one observation.
        writers: the writers of these arrays; outputs of `act` are packed (`RolloutBuffer`).
    """
    size = (rollout.horizon, num_envs)
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, field in TRAJECTORY_FIELDS.items():
        if field.axes != "TN" or field.writer not in writers or not rollout.holds(name):
            continue
        if field.entry != "obs":
            found[name] = (size, field.entry)
            continue
        for leaf_name, leaf in tree.named(name, spec).items():
            found[leaf_name] = ((rollout.horizon + 1, num_envs, *leaf.shape), leaf.dtype)
    return found


class RolloutBuffer:
    """Arrays for T steps of N environments, reused by every trajectory.

    `obs` is a tree of ``[T + 1, N, ...]``: row ``t + 1`` is the observations after step ``t``, and
    the last row is the first of the next trajectory. `outputs` is a list with one array
    ``[T, words]`` uint32 per acting group: the packed rows that `act` returned, one per step.

    Args:
        rollout: T, and which optional arrays to keep.
        num_envs: N.
        spec: one observation.
        layouts: the layout of each acting group's packed rows, in the environments' order.
        sign: return only the signs of rewards.
        shared: zeroed arrays by their names in `step_arrays`, to use instead of new ones. They may
            be in shared memory, for other processes to write to; `outputs` is ``[groups, T,
            words]``.
    """

    def __init__(
        self,
        rollout: RolloutSpec,
        num_envs: int,
        spec: ObsSpec,
        layouts: Sequence[OutputLayout],
        sign: bool = False,
        shared: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self._num_envs = num_envs
        given = shared or {}
        arrays = {
            name: given[name] if name in given else np.zeros(shape, dtype)
            for name, (shape, dtype) in step_arrays(rollout, num_envs, spec).items()
        }
        self.obs: Obs = tree.unnamed("obs", spec, arrays)
        self.rewards = arrays["rewards"]
        self.terminated, self.truncated = arrays["terminated"], arrays["truncated"]
        self.valid, self.ended = arrays.get("valid"), arrays.get("ended")
        self._flags = {n: array for n, array in arrays.items() if field_of(n).writer == "sampler"}
        if "outputs" in given:
            self.outputs = list(given["outputs"])
        else:
            rows = rollout.horizon
            self.outputs = [np.zeros((rows, layout.words), np.uint32) for layout in layouts]
        self._sign = sign
        self._least_finals = rollout.truncations * num_envs
        self._no_finals = pack_finals(
            np.zeros(0, np.int32), tree.take(self.obs, (0, slice(0))), self.rewards.size,
            self._least_finals,
        )  # fmt: skip
        for unused in (self._no_finals.index, *tree.leaves(self._no_finals.obs)):
            unused.flags.writeable = False  # trajectories share them
        # Views of `outputs`, made once: making them takes as long as a short step.
        self._views = [
            layout.read(rows) for layout, rows in zip(layouts, self.outputs, strict=True)
        ]
        self._final_obs: list[Obs] = []
        self._final_index: list[int] = []

    def first_obs(self, env: int) -> Obs:
        """Return a copy of the first observation of an environment."""
        return tree.map(lambda leaf: leaf[0, env].copy(), self.obs)

    def start(self) -> None:
        """Begin a trajectory. `obs[0]` must hold its first observations."""
        for flags in self._flags.values():
            flags.fill(False)
        self.forget()

    def forget(self) -> None:
        """Drop final observations. If workers write the other arrays, call this, not `start`."""
        self._final_obs.clear()
        self._final_index.clear()

    def keep_final(self, step: int, env: int, obs: Obs) -> None:
        """Store the final observation of an episode that `step` truncated in environment `env`."""
        self._final_obs.append(tree.map(np.array, obs))  # copies: environments may reuse arrays
        self._final_index.append(step * self._num_envs + env)

    def trajectory(self) -> Trajectory:
        """Return the trajectory. Its arrays are views, valid until the next `start`."""
        finals = self._no_finals
        if self._final_index:
            index = np.array(self._final_index, np.int32)
            obs = tree.map(
                lambda rows, *finals: np.stack(finals).astype(rows.dtype, copy=False),
                self.obs, *self._final_obs,
            )  # fmt: skip
            finals = pack_finals(index, obs, self.rewards.size, self._least_finals)
        outputs = self.read()
        actions = outputs.pop("action")
        return Trajectory(
            obs=tree.take(self.obs, slice(None, -1)),
            actions=actions,
            rewards=np.sign(self.rewards) if self._sign else self.rewards,
            last_obs=tree.take(self.obs, -1),
            finals=finals,
            extras=outputs,
            **self._flags,
        )

    def read(self) -> dict[str, np.ndarray]:
        """Return the outputs of `act` by name, each ``[T, N, ...]``."""
        first, *more = self._views
        if not more:
            return dict(first)
        return {name: np.concatenate([part[name] for part in self._views], 1) for name in first}

    def check(self, name: str, first: int = 0) -> None:
        """Check that all observations and rewards are finite.

        Args:
            name: the environment's name, for the message.
            first: the number of the first environment in the run.

        Raises:
            EnvironmentFailure: one is NaN or infinite; the message names its step and environment.
        """
        bad_obs = "an observation with NaN or infinity"

        def at(path: str) -> str:
            return f" in {path!r}" if path else ""

        if not np.isfinite(self.rewards).all():
            rows = self.rewards if self.valid is None else np.where(self.valid, self.rewards, 0)
            bad = np.argwhere(~np.isfinite(rows))
            if len(bad):
                step, env = bad[0]
                raise invalid_return(name, step, first + env, f"reward {self.rewards[step, env]}")
        for path, array in tree.items(self.obs):
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                flat = np.isfinite(array).reshape(*array.shape[:2], -1).all(-1)
                step, env = np.argwhere(~flat)[0]
                raise invalid_return(name, step - 1, first + env, bad_obs + at(path))
        for index, obs in zip(self._final_index, self._final_obs, strict=True):
            for path, array in tree.items(obs):
                if array.dtype.kind == "f" and not np.isfinite(array).all():
                    step, env = divmod(index, self._num_envs)
                    raise invalid_return(name, step, first + env, bad_obs + at(path))
