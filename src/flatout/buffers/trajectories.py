"""The last K trajectories, learned from again: PPO with trajectory replay.

Each keeps the log-probabilities that it was acted with, so that ratios are against the policy
that really acted; advantages are computed anew from the present values. K trajectories of N
environments are handed over as one of K * N; while fewer were collected, the rest is masked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flatout.algorithms.base import Algorithm, shapes_of
from flatout.buffers.on_policy import OnPolicyBuffer
from flatout.errors import CheckpointError
from flatout.types import RowSource, Trajectory


class TrajectoryReplay(OnPolicyBuffer):
    """Keeps the last K trajectories; the newest are the first N environments.

    Args:
        algorithm: learns from them, padding masked.
        kept: K.
        trajectory: the shapes of one trajectory.
    """

    def __init__(self, algorithm: Algorithm, kept: int, trajectory: Trajectory) -> None:
        super().__init__(algorithm)
        self._kept = kept
        self._num_envs = trajectory.rewards.shape[1]
        self._count = 0  # trajectories ever taken in
        self._all = self._zeros(trajectory)

    def inputs(self, trajectory: Trajectory) -> list[Any]:
        """The shapes of all K trajectories as one."""
        return [shapes_of(self._zeros(trajectory))]

    def ingest(self, trajectory: Trajectory) -> None:
        """Add the newest; the oldest of K + 1 falls out."""
        room = trajectory.final_index.shape[0]
        if room * self._kept > len(self._all.final_index):  # room for final observations grew
            self._all = self._grown(trajectory)
        num_envs, total = self._num_envs, self._num_envs * self._kept
        steps = trajectory.rewards.shape[0]
        new = trajectory._replace(
            valid=np.ones_like(trajectory.terminated) if trajectory.valid is None
            else trajectory.valid,
            ended=None,
        )  # fmt: skip
        row, env = np.divmod(trajectory.final_index, num_envs)
        used = trajectory.final_index < steps * num_envs
        finals = np.where(used, row * total + env, steps * total).astype(np.int32)
        for name, array in _fields(self._all):
            if name in ("final_obs", "final_index"):
                array[room:] = array[:-room].copy()
                continue
            axis = 0 if name == "last_obs" else 1
            _shift(array, num_envs, axis)
            _newest(array, num_envs, axis)[...] = _field(new, name)
        index = self._all.final_index
        older = index[room:]
        moved = np.where(older < steps * total, older + num_envs, steps * total)
        index[room:] = moved
        index[:room] = finals
        self._all.final_obs[:room] = trajectory.final_obs
        self._count += 1
        self._ingested = self._all

    def stats(self) -> dict[str, float]:
        """How many of the K trajectories there are, as a share, and what they take."""
        size = sum(array.nbytes for _, array in _fields(self._all))
        return {
            "replay_fill": min(self._count, self._kept) / self._kept,
            "replay_mb": size / 2**20,
        }

    def memory_mb(self) -> tuple[float, float]:
        """MiB in host memory, and in the learning device's."""
        return sum(array.nbytes for _, array in _fields(self._all)) / 2**20, 0.0

    def state(
        self, device_state: Any
    ) -> tuple[dict[str, np.ndarray], dict[str, Any], RowSource | None]:
        """All K trajectories."""
        return (
            {name: array.copy() for name, array in _fields(self._all)},
            {"count": self._count},
            None,
        )

    def restore(
        self, arrays: dict[str, np.ndarray], data: dict[str, Any], rows: RowSource | None
    ) -> Any:
        """Take over such a state."""
        extras = dict(self._all.extras)
        fields: dict[str, np.ndarray] = {}
        for name, array in _fields(self._all):
            saved = np.array(arrays[name])
            sparse = name in ("final_obs", "final_index")
            if saved.dtype != array.dtype or (saved.shape != array.shape and not sparse):
                raise CheckpointError(f"the replayed trajectories' {name} is of another shape.")
            if name in extras:
                extras[name] = saved
            else:
                fields[name] = saved
        self._all = self._all._replace(extras=extras, **fields)
        self._count = int(data["count"])
        return ()

    def truncate(
        self, env: int, final_obs: np.ndarray, first_obs: np.ndarray, device_state: Any
    ) -> Any:
        """Whole trajectories end with their own last observation: nothing to mend."""
        return device_state

    def _zeros(self, trajectory: Trajectory) -> Trajectory:
        """K trajectories of nothing: all masked."""
        total = self._num_envs * self._kept

        def wide(leaf: Any, axis: int) -> np.ndarray:
            shape = list(leaf.shape)
            shape[axis] = total
            return np.zeros(shape, leaf.dtype)

        steps = trajectory.rewards.shape[0]
        room = trajectory.final_index.shape[0] * self._kept
        return Trajectory(
            obs=wide(trajectory.obs, 1),
            actions=wide(trajectory.actions, 1),
            rewards=wide(trajectory.rewards, 1),
            terminated=wide(trajectory.terminated, 1),
            truncated=wide(trajectory.truncated, 1),
            last_obs=wide(trajectory.last_obs, 0),
            final_obs=np.zeros((room, *trajectory.final_obs.shape[1:]), trajectory.obs.dtype),
            final_index=np.full((room,), steps * total, np.int32),
            extras={name: wide(leaf, 1) for name, leaf in trajectory.extras.items()},
            valid=np.zeros((steps, total), np.bool_),
        )

    def _grown(self, trajectory: Trajectory) -> Trajectory:
        wider = self._zeros(trajectory)
        room = len(wider.final_index) // self._kept
        old = len(self._all.final_index) // self._kept
        for k in range(self._kept):
            wider.final_obs[k * room : k * room + old] = self._all.final_obs[
                k * old : (k + 1) * old
            ]
            wider.final_index[k * room : k * room + old] = self._all.final_index[
                k * old : (k + 1) * old
            ]
        return self._all._replace(final_obs=wider.final_obs, final_index=wider.final_index)


def _fields(trajectory: Trajectory) -> list[tuple[str, np.ndarray]]:
    """Every array of a trajectory by name, those in `extras` included."""
    plain = [
        (name, array)
        for name, array in trajectory._asdict().items()
        if name != "extras" and array is not None
    ]
    return plain + list(trajectory.extras.items())


def _field(trajectory: Trajectory, name: str) -> np.ndarray:
    return trajectory.extras[name] if name in trajectory.extras else getattr(trajectory, name)


def _shift(array: np.ndarray, num_envs: int, axis: int) -> None:
    """Older trajectories move up by N environments."""
    if axis == 0:
        array[num_envs:] = array[:-num_envs].copy()
    else:
        array[:, num_envs:] = array[:, :-num_envs].copy()


def _newest(array: np.ndarray, num_envs: int, axis: int) -> np.ndarray:
    return array[:num_envs] if axis == 0 else array[:, :num_envs]
