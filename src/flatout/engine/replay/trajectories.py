"""PPO with trajectory replay: the learner learns again from the last K trajectories.

Each trajectory keeps the log-probabilities of the policy that acted, so that ratios are relative
to that policy. Advantages are computed again from the current values. The learner gets the K
trajectories as one of K * N environments. Before K have been collected, the rest is masked.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from flatout.algorithms.base import Algorithm
from flatout.engine.buffer import Arrays, Data, Due, OnPolicyBuffer, Saved
from flatout.engine.finals import join_along_envs, pack_finals, split_finals, used_finals
from flatout.engine.trajectory import arrays_of, by_env, env_axis, shard_shapes, with_arrays
from flatout.storage.checkpoint import refuse_other
from flatout.types import Obs, ObsSpec, RowSource, Trajectory


def kept_shapes(trajectory: Trajectory, kept: int) -> Trajectory:
    """Return the shapes of the arrays that hold the last `kept` trajectories."""
    return shard_shapes(trajectory._replace(valid=trajectory.terminated, ended=None), 1, kept)


@dataclass
class KeptTrajectories:
    """The last K trajectories as one, written in place. Along the environments they are ordered by
    shard, and newest first within a shard."""

    arrays: Trajectory
    count: int  # trajectories ever ingested
    # Per trajectory, newest first: positions of final observations, and these observations.
    finals: deque[tuple[np.ndarray, Obs]]


class TrajectoryReplay(OnPolicyBuffer):
    """A buffer of the last K trajectories; its store is `KeptTrajectories`.

    Args:
        algorithm: the algorithm that learns from them. It must mask steps that are not valid.
        kept: K.
        trajectory: the shapes of one trajectory.
        shards, spec: see `OnPolicyBuffer`.
    """

    def __init__(
        self, algorithm: Algorithm, kept: int, trajectory: Trajectory, shards: int = 1,
        spec: ObsSpec | None = None,
    ) -> None:  # fmt: skip
        super().__init__(algorithm, shards, spec)
        self._kept = kept
        self._num_envs = trajectory.rewards.shape[1]
        self._like = trajectory
        self._least_finals = kept_shapes(trajectory, kept).finals.index.shape[0]

    def inputs(self, trajectory: Trajectory) -> list[Any]:
        return super().inputs(kept_shapes(trajectory, self._kept))

    def store(self) -> KeptTrajectories:
        return KeptTrajectories(self._zeros(self._like), 0, deque(maxlen=self._kept))

    def ingest(self, store: KeptTrajectories, counts: Any, trajectory: Trajectory) -> Due:
        num_envs, new, kept = self._num_envs, arrays_of(trajectory), store.arrays
        each = num_envs // self._shards
        if trajectory.valid is None:
            new["valid"] = np.ones_like(trajectory.terminated)
        for name, array in arrays_of(kept).items():
            if env_axis(name) is not None:
                envs, newest = (self._view(by_env(name, one)) for one in (array, new[name]))
                envs[:, each:] = envs[:, :-each].copy()
                envs[:, :each] = newest
        store.finals.appendleft(used_finals(trajectory.finals, trajectory.rewards.size))
        total = num_envs * self._kept
        index, obs = join_along_envs(store.finals, num_envs, total, self._shards)
        finals = pack_finals(index, obs, kept.rewards.size, self._least_finals)
        store.arrays = kept._replace(finals=finals)
        store.count += 1
        return super().ingest(store, counts, store.arrays)

    def _view(self, envs: np.ndarray) -> np.ndarray:
        """Return a view ``[S, E / S, ...]`` of an array ``[E, ...]``."""
        return envs.reshape(self._shards, -1, *envs.shape[1:])

    def stats(self, store: KeptTrajectories, counts: Any, later: int = 0) -> dict[str, float]:
        size = sum(array.nbytes for array in arrays_of(store.arrays).values())
        fill = min(store.count, self._kept) / self._kept
        return {"replay_fill": fill, "replay_mb": size / 2**20}

    def saved(self, store: KeptTrajectories, counts: Any) -> Saved:
        named = arrays_of(store.arrays).items()
        arrays = {_saved_name(name): array.copy() for name, array in named}
        return arrays, {"count": store.count, "shards": self._shards}, None

    def restored(self, arrays: Arrays, data: Data, rows: RowSource | None) -> tuple[Any, Any]:
        super().restored(arrays, data, rows)
        store, restored = self.store(), Arrays()
        for name, array in arrays_of(store.arrays).items():
            saved = restored[name] = np.array(arrays[_saved_name(name)])
            like = array
            if env_axis(name) is None:  # the saved capacity may be larger
                like = np.empty((len(saved), *array.shape[1:]), array.dtype)
            refuse_other(f"buffer/{_saved_name(name)}", saved, like, "this run")
        store.arrays = with_arrays(store.arrays, restored)
        steps, total = store.arrays.rewards.shape
        each = self._num_envs // self._shards
        blocks = split_finals(store.arrays.finals, steps, total, self._shards * self._kept)
        for number in range(self._kept):
            own = [used_finals(one, steps * each) for one in blocks[number :: self._kept]]
            store.finals.append(join_along_envs(own, each, self._num_envs))
        store.count = int(data["count"])
        return store, ()

    def _zeros(self, trajectory: Trajectory) -> Trajectory:
        """Return the arrays as they are before the first trajectory: zeros, all masked."""
        shapes = kept_shapes(trajectory, self._kept)
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        zeros.finals.index.fill(zeros.rewards.size)
        return zeros


def _saved_name(name: str) -> str:
    """Return the name under which checkpoints have an array: outputs of `act` have no prefix."""
    return name.removeprefix("extras/")
