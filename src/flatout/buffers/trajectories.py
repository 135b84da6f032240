"""PPO with trajectory replay: the learner learns again from the last K trajectories.

Each trajectory keeps the log-probabilities of the policy that acted, so that ratios are relative
to that policy. Advantages are computed again from the current values. The learner gets the K
trajectories as one of K * N environments. Before K have been collected, the rest is masked.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import jax
import numpy as np

from flatout.algorithms.base import Algorithm, shapes_of
from flatout.buffers.arrays import arrays_of, by_env, env_axis, shard_shapes, with_arrays
from flatout.buffers.base import Arrays, Data, Saved
from flatout.buffers.finals import join_along_envs, pack_finals, split_finals, used_finals
from flatout.buffers.on_policy import OnPolicyBuffer
from flatout.storage.checkpoint import refuse_other
from flatout.types import Obs, RowSource, Trajectory


def kept_shapes(trajectory: Trajectory, kept: int) -> Trajectory:
    """Return the shapes of the arrays that hold the last `kept` trajectories."""
    return shard_shapes(trajectory._replace(valid=trajectory.terminated, ended=None), 1, kept)


class TrajectoryReplay(OnPolicyBuffer):
    """A buffer of the last K trajectories. The newest one is in the first N environments.

    Args:
        algorithm: the algorithm that learns from them. It must mask steps that are not valid.
        kept: K.
        trajectory: the shapes of one trajectory.
    """

    def __init__(self, algorithm: Algorithm, kept: int, trajectory: Trajectory) -> None:
        super().__init__(algorithm)
        self._kept = kept
        self._num_envs = trajectory.rewards.shape[1]
        self._count = 0  # trajectories ever ingested
        self._all = self._zeros(trajectory)
        self._least_finals = len(self._all.finals.index)
        # Per trajectory, newest first: positions of final observations, and these observations.
        self._finals: deque[tuple[np.ndarray, Obs]] = deque(maxlen=kept)

    def inputs(self, trajectory: Trajectory) -> list[Any]:
        return [shapes_of(self._zeros(trajectory))]

    def ingest(self, trajectory: Trajectory) -> None:
        num_envs, new = self._num_envs, arrays_of(trajectory)
        if trajectory.valid is None:
            new["valid"] = np.ones_like(trajectory.terminated)
        for name, array in arrays_of(self._all).items():
            if env_axis(name) is not None:
                envs = by_env(name, array)
                envs[num_envs:] = envs[:-num_envs].copy()
                envs[:num_envs] = by_env(name, new[name])
        self._finals.appendleft(used_finals(trajectory.finals, trajectory.rewards.size))
        index, obs = join_along_envs(self._finals, num_envs, num_envs * self._kept)
        finals = pack_finals(index, obs, self._all.rewards.size, self._least_finals)
        self._all = self._all._replace(finals=finals)
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
            if env_axis(name) is None:  # the saved capacity may be larger
                like = np.empty((len(saved), *array.shape[1:]), array.dtype)
            refuse_other(f"buffer/{name}", saved, like, "this run")
        self._all = with_arrays(self._all, restored)
        steps, total = self._all.rewards.shape
        each = split_finals(self._all.finals, steps, total, self._kept)
        self._finals.extend(used_finals(one, steps * self._num_envs) for one in each)
        self._count = int(data["count"])
        return ()

    def _zeros(self, trajectory: Trajectory) -> Trajectory:
        """Return the arrays as they are before the first trajectory: zeros, all masked."""
        shapes = kept_shapes(trajectory, self._kept)
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        zeros.finals.index.fill(zeros.rewards.size)
        return zeros
