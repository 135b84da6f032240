"""The interface of buffers, which turn trajectories into the inputs of the learner's program, and
the buffers of on-policy algorithms.

`engine/learn.py` calls it; in a compiled loop, `engine/loop.py` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import Algorithm, shapes_of
from flatout.engine.trajectory import shard_shapes, split, whole_trajectory
from flatout.errors import CheckpointError
from flatout.randomness import wrap_key
from flatout.types import ObsSpec, Restart, RowSource, Trajectory

Scalars = dict[str, jax.Array]
Learned = tuple[Any, Any, Scalars, Any]
"""The learning state, the store, scalars and feedback after the updates."""
Arrays = dict[str, np.ndarray]
Data = dict[str, Any]
Saved = tuple[Arrays, Data, RowSource | None]
"""A buffer's state: arrays, JSON-compatible data, and rows of experience or None."""


class Due(NamedTuple):
    """The work that a trajectory makes due.

    Attributes:
        store: the store with the trajectory.
        updates: the number of updates.
        batches: yields the inputs of each dispatch of `Buffer.learn`, at least one.
        drawn: the sampled rows and environments, for `Buffer.update_priorities`.
    """

    store: Any
    updates: int
    batches: Iterator[Any]
    drawn: Any = ()


class Buffer:
    """The base of buffers. It keeps no data: `RunState.store` and `RunState.counts` have them.

    Methods may write into the store and the counts that they take; they return the store to use
    from then on. `learn` is pure and becomes a part of the learner's compiled program.

    Args:
        algorithm: the algorithm that learns from the data.

    Attributes:
        metrics: the names of the scalars that `learn` returns.
        in_program: whether the compiled program takes and returns the store, on the learning
            devices; otherwise it takes ().
        member_counts: the vmap axes of `loop_counts` for the members of a population, as a pytree
            prefix: None for counts that all members share, else 0.
        shard_counts: the same for shards.
        key: raw key data of the sampling stream, ``[2]``, or ``[S, 2]`` for S shards; () if
            nothing is sampled.
        axes: a pytree prefix of the inputs of a sharded learner: 0 where each shard has an array,
            None where all shards share one.
    """

    in_program = False

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self.metrics = algorithm.metrics
        self.axes: Any = 0
        self.key: Any = ()
        self.member_counts: Any = 0
        self.shard_counts: Any = 0

    def inputs(self, trajectory: Trajectory) -> list[Any]:
        """Return the shapes of all inputs of `learn` for trajectories of these shapes; the first
        entry is for dispatches with updates."""
        raise NotImplementedError

    def store(self) -> Any:
        """Return the initial store."""
        return ()

    def counts(self) -> Any:
        """Return the initial counts, as the host advances them."""
        return ()

    def ingest(self, store: Any, counts: Any, trajectory: Trajectory) -> Due:
        """Do the host's part of ingesting a trajectory; `learn` does the rest on the device."""
        raise NotImplementedError

    def learn(self, state: Any, store: Any, inputs: Any, key: jax.Array, hp: Any) -> Learned:
        """Make the updates of one dispatch. Pure: it is traced into the learner's program."""
        raise NotImplementedError

    def update_priorities(self, store: Any, due: Due, feedback: list[Any]) -> Any:
        """Use the feedback that `learn` returned. Called once after all updates of a trajectory."""
        return store

    def loop_counts(self, counts: Any) -> Any:
        """Return the counts, of the host or of a compiled loop, as arrays for a compiled loop."""
        return counts

    def ingest_in_graph(
        self, trajectory: Trajectory, store: Any, counts: Any, key: Any
    ) -> tuple[Any, Any]:
        """Do the work of `ingest` within a compiled program. Pure.

        Args:
            counts: the counts before the trajectory.
            key: this buffer's `key`; runs that share the program may have different keys.

        Returns:
            The inputs of the one dispatch, and the counts after it.
        """
        raise NotImplementedError

    def stats(self, store: Any, counts: Any, later: int = 0) -> dict[str, float]:
        """Return the buffer's metrics, which are reported with the learner's.

        Args:
            store: the store, or its shapes.
            later: rows that a compiled loop has stored since `counts`.
        """
        return {}

    def saved(self, store: Any, counts: Any) -> Saved:
        """Return what a checkpoint needs of the store and the counts."""
        return {}, {}, None

    def restored(self, arrays: Arrays, data: Data, rows: RowSource | None) -> tuple[Any, Any]:
        """Return the store and the counts of a result of `saved`; raise a `CheckpointError` if it
        does not fit this buffer."""
        return (), ()

    def truncate(self, store: Any, counts: Any, restarts: Sequence[Restart]) -> Any:
        """Truncate the stored episodes of restarted environments after their newest step, because
        they could not be continued. That step led to the restart's last observation."""
        return store


def check_shards(data: Data, shards: int) -> None:
    """Check that a buffer's state was saved with `shards` shards.

    Raises:
        CheckpointError: it was saved with another number of shards.
    """
    saved = data.get("shards", 1)
    if saved != shards:
        raise CheckpointError(f"it was saved with --shards {saved}.")


class OnPolicyBuffer(Buffer):
    """A buffer that passes the newest trajectory to the update, unchanged, or split by shard: shard
    s has the s-th block of N / S environments.

    `ingest_in_graph` and `learn` are those of one shard; the learner maps them over the shards.

    Args:
        algorithm: the algorithm that learns from the data.
        shards: S.
        spec: one observation, if trajectories store each frame of a stack once; else None.
    """

    def __init__(self, algorithm: Algorithm, shards: int = 1, spec: ObsSpec | None = None) -> None:
        super().__init__(algorithm)
        self._shards, self._spec = shards, spec

    def inputs(self, trajectory: Trajectory) -> list[Any]:
        count = self._shards
        if count == 1:
            return [shapes_of(trajectory)]
        return [
            jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype),
                shard_shapes(trajectory, count),
            )
        ]

    def ingest(self, store: Any, counts: Any, trajectory: Trajectory) -> Due:
        return Due(store, 1, iter([self._by_shard(trajectory)]))

    def _by_shard(self, trajectory: Trajectory) -> Trajectory:
        """Return a trajectory as the program takes it, as arrays ``[S, ...]`` of several shards."""
        if self._shards == 1:
            return trajectory
        return jax.tree.map(lambda *parts: np.stack(parts), *split(trajectory, self._shards))

    def ingest_in_graph(
        self, trajectory: Trajectory, store: Any, counts: Any, key: Any
    ) -> tuple[Any, Any]:
        return trajectory, counts

    def learn(self, state: Any, store: Any, inputs: Any, key: jax.Array, hp: Any) -> Learned:
        if self._spec is not None:
            # The barrier keeps XLA from fusing the update differently than with whole observations.
            inputs = jax.lax.optimization_barrier(whole_trajectory(jnp, self._spec, inputs))
        state, metrics, _ = self._algorithm.update(state, inputs, wrap_key(key), hp)
        return state, store, metrics, ()

    def saved(self, store: Any, counts: Any) -> Saved:
        return {}, {"shards": self._shards}, None

    def restored(self, arrays: Arrays, data: Data, rows: RowSource | None) -> tuple[Any, Any]:
        check_shards(data, self._shards)
        return (), ()
