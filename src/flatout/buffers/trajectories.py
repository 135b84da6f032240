"""The last K trajectories, learned from again: PPO with trajectory replay.

Each keeps the log-probabilities that it was acted with, so that ratios are against the policy
that really acted; advantages are computed anew from the present values. K trajectories of N
environments are handed over as one of K * N; while fewer were collected, the rest is masked.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from flatout.algorithms.base import Algorithm, shapes_of
from flatout.buffers.arrays import FINALS, arrays_of, by_env, shard_shapes, with_arrays
from flatout.buffers.base import Arrays, Data, Saved
from flatout.buffers.on_policy import OnPolicyBuffer
from flatout.storage.checkpoint import refuse_other
from flatout.types import RowSource, Trajectory


def kept_shapes(trajectory: Trajectory, kept: int) -> Trajectory:
    """The shapes of the arrays that hold the last `kept` trajectories."""
    return shard_shapes(trajectory._replace(valid=trajectory.terminated, ended=None), 1, kept)


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
        self._count = 0  # trajectories ever ingested
        self._all = self._zeros(trajectory)

    def inputs(self, trajectory: Trajectory) -> list[Any]:
        return [shapes_of(self._zeros(trajectory))]

    def ingest(self, trajectory: Trajectory) -> None:
        room = trajectory.final_index.shape[0]
        if room * self._kept > len(self._all.final_index):
            self._grow(room)
        num_envs, total = self._num_envs, self._num_envs * self._kept
        steps = trajectory.rewards.shape[0]
        row, env = np.divmod(trajectory.final_index, num_envs)
        used = trajectory.final_index < steps * num_envs
        finals = np.where(used, row * total + env, steps * total).astype(np.int32)
        new = arrays_of(trajectory)
        if trajectory.valid is None:
            new["valid"] = np.ones_like(trajectory.terminated)
        for name, array in arrays_of(self._all).items():
            if name in FINALS:
                array[room:] = array[:-room].copy()
                continue
            envs = by_env(name, array)
            envs[num_envs:] = envs[:-num_envs].copy()
            envs[:num_envs] = by_env(name, new[name])
        index = self._all.final_index
        older = index[room:]
        index[room:] = np.where(older < steps * total, older + num_envs, steps * total)
        index[:room] = finals
        self._all.final_obs[:room] = trajectory.final_obs
        self._count += 1
        self._ingested = self._all

    def stats(self) -> dict[str, float]:
        fill = min(self._count, self._kept) / self._kept
        return {"replay_fill": fill, "replay_mb": self.memory_mb()[0]}

    def memory_mb(self) -> tuple[float, float]:
        return sum(array.nbytes for array in arrays_of(self._all).values()) / 2**20, 0.0

    def state(self, device_state: Any) -> Saved:
        arrays = {name: array.copy() for name, array in arrays_of(self._all).items()}
        return arrays, {"count": self._count}, None

    def restore(self, arrays: Arrays, data: Data, rows: RowSource | None) -> Any:
        restored: Arrays = {}
        for name, array in arrays_of(self._all).items():
            saved = restored[name] = np.array(arrays[name])
            like = array
            if name in FINALS:  # which may have had more room
                like = np.empty((len(saved), *array.shape[1:]), array.dtype)
            refuse_other(f"buffer/{name}", saved, like, "this run")
        self._all = with_arrays(self._all, restored)
        self._count = int(data["count"])
        return ()

    def _zeros(self, trajectory: Trajectory) -> Trajectory:
        """K trajectories of nothing: all masked."""
        shapes = kept_shapes(trajectory, self._kept)
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        zeros.final_index.fill(zeros.rewards.size)
        return zeros

    def _grow(self, room: int) -> None:
        """Make room for so many final observations of each trajectory."""
        index, obs = self._all.final_index, self._all.final_obs
        wider_index = np.full((self._kept, room), self._all.rewards.size, index.dtype)
        wider_obs = np.zeros((self._kept, room, *obs.shape[1:]), obs.dtype)
        before = len(index) // self._kept
        wider_index[:, :before] = index.reshape(self._kept, before)
        wider_obs[:, :before] = obs.reshape(self._kept, before, *obs.shape[1:])
        self._all = self._all._replace(
            final_obs=wider_obs.reshape(-1, *obs.shape[1:]), final_index=wider_index.reshape(-1)
        )
