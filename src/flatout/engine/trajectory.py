"""Step 6 of the data flow, inline: a trajectory's arrays.

`RolloutBuffer` allocates them once, and the sampler writes them step by step. Buffers, schedules
and the device sampler read them by name and by shard.

Final observations of truncated episodes are stored separately, because they are few. Their arrays
have a capacity C; unused entries have the index T * N and change no result. The capacity is the
smallest sufficient one of ``least``, 2 * ``least``, 4 * ``least``, ...: it depends only on the
trajectory, and an update is compiled once for each capacity that occurs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from flatout import tree
from flatout.algorithms.base import RolloutSpec
from flatout.envs.base import invalid_return
from flatout.packing import OutputLayout
from flatout.types import Array, Finals, Obs, ObsSpec, Trajectory


def truncations(horizon: int, limit: int | None) -> int:
    """Return how often a time limit of `limit` steps can truncate one environment's episodes within
    `horizon` steps, at least 1. An environment's own code may truncate more often."""
    return 1 if limit is None else horizon // limit + 1


def capacity(count: int, least: int) -> int:
    """Return the capacity for `count` final observations: `least`, doubled until they fit."""
    while least < count:
        least *= 2
    return least


def pack_finals(index: Array, obs: Obs, size: int, least: int) -> Finals:
    """Pack final observations into arrays with a capacity, in the order of their steps.

    Args:
        index: ``[n]``, the position ``t * N + env`` of each.
        obs: ``[n, ...]``, the observations.
        size: T * N of the trajectory.
        least: the smallest capacity.
    """
    count = len(index)
    room = capacity(count, least)
    empty = tree.map(lambda leaf: np.zeros((room, *leaf.shape[1:]), leaf.dtype), obs)
    finals = Finals(empty, np.full((room,), size, np.int32))
    if count:
        order = np.argsort(index, kind="stable")
        finals.index[:count] = index[order]
        tree.put(finals.obs, slice(count), tree.take(obs, order))
    return finals


def used_finals(finals: Finals, size: int) -> tuple[np.ndarray, Obs]:
    """Return the positions ``[n]`` and observations ``[n, ...]`` of the used entries."""
    which = np.flatnonzero((finals.index >= 0) & (finals.index < size))
    return finals.index[which], tree.take(finals.obs, which)


def append_final(finals: Finals, index: int, obs: Obs, size: int) -> Finals:
    """Return the final observations with a further one, `obs` at position `index`."""
    indices, values = used_finals(finals, size)
    values = tree.map(lambda rows, one: np.concatenate([rows, one[None]]), values, obs)
    return pack_finals(np.append(indices, index), values, size, len(finals.index))


def split_finals(finals: Finals, steps: int, num_envs: int, shards: int) -> list[Finals]:
    """Divide the final observations by shard, with the same capacity for all shards."""
    each = num_envs // shards
    index, obs = used_finals(finals, steps * num_envs)
    row, env = np.divmod(index, num_envs)
    shard, env = np.divmod(env, each)
    most = int(np.bincount(shard, minlength=1).max())
    room = capacity(most, len(finals.index) // shards)

    def select(number: int) -> Finals:
        mine = shard == number
        own = tree.take(obs, mine)
        return pack_finals(row[mine] * each + env[mine], own, steps * each, room)

    return [select(number) for number in range(shards)]


def join_finals(parts: Finals, steps: int, each: int) -> Finals:
    """Join the shards' final observations, in the order of the shards: the inverse of
    `split_finals`.

    Args:
        parts: arrays ``[S, C, ...]`` of S shards.
        steps: T.
        each: the number of environments of one shard.
    """
    num_envs = len(parts.index) * each
    used = [
        used_finals(Finals(tree.take(parts.obs, shard), parts.index[shard]), steps * each)
        for shard in range(len(parts.index))
    ]
    index, obs = join_along_envs(used, each, num_envs)
    return pack_finals(index, obs, steps * num_envs, parts.index.size)


def sort_finals(finals: Finals) -> Finals:
    """Sort the entries by their steps; unused ones come last."""
    order = np.argsort(finals.index, kind="stable")
    return Finals(tree.take(finals.obs, order), finals.index[order])


def join_along_envs(
    parts: Sequence[tuple[np.ndarray, Obs]], num_envs: int, total: int
) -> tuple[np.ndarray, Obs]:
    """Join trajectories' final observations, with their positions in the joined trajectory.

    Args:
        parts: positions and observations of each trajectory of `num_envs` environments, in the
            order in which the trajectories are joined along the environments.
        total: the number of environments of the joined trajectory.
    """
    moved: list[np.ndarray] = []
    for number, (index, _) in enumerate(parts):
        row, env = np.divmod(index, num_envs)
        moved.append(row * total + number * num_envs + env)
    obs = tree.map(lambda *each: np.concatenate(each), *(obs for _, obs in parts))
    return np.concatenate(moved), obs


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
        shared: zeroed arrays by attribute name (`tree.named` for observations), to use instead of
            new ones. They may be in shared memory, for other processes to write to; `outputs` is
            ``[groups, T, words]``.
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
        horizon, given = rollout.horizon, shared or {}
        flags = ((horizon, num_envs), "bool")

        def array(name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
            return given[name] if name in given else np.zeros(shape, dtype)

        obs = {
            name: array(name, (horizon + 1, num_envs, *leaf.shape), leaf.dtype)
            for name, leaf in tree.named("obs", spec).items()
        }
        self.obs: Obs = tree.unnamed("obs", spec, obs)
        self.rewards = array("rewards", (horizon, num_envs), "float32")
        self.terminated = array("terminated", *flags)
        self.truncated = array("truncated", *flags)
        self.valid = array("valid", *flags) if rollout.episodes is not None else None
        self.ended = array("ended", *flags) if rollout.replayed else None
        if "outputs" in given:
            self.outputs = list(given["outputs"])
        else:
            self.outputs = [np.zeros((horizon, layout.words), np.uint32) for layout in layouts]
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
        self.terminated.fill(False)
        self.truncated.fill(False)
        if self.valid is not None:
            self.valid.fill(False)
        if self.ended is not None:
            self.ended.fill(False)
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
            terminated=self.terminated,
            truncated=self.truncated,
            last_obs=tree.take(self.obs, -1),
            finals=finals,
            extras=outputs,
            valid=self.valid,
            ended=self.ended,
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
