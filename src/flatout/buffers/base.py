"""The interface of buffers, which turn trajectories into the inputs of the learner's program.

`learner/learner.py` calls it; in a compiled loop, `schedules/loop.py` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from flatout.algorithms.base import Algorithm
from flatout.errors import CheckpointError
from flatout.types import Obs, RowSource, Trajectory

Scalars = dict[str, jax.Array]
Learned = tuple[Any, Any, Scalars, Any]
"""The learning state, the device state, scalars and feedback after the updates."""
Arrays = dict[str, np.ndarray]
Data = dict[str, Any]
Saved = tuple[Arrays, Data, RowSource | None]
"""A buffer's state: arrays, JSON-compatible data, and rows of experience or None."""


class Buffer:
    """The base of buffers, on the host or on a device. It keeps no data itself.

    `learn` is pure and becomes a part of the learner's compiled program. That program takes and
    returns the device state, which is the data that a buffer keeps in device memory.

    Args:
        algorithm: the algorithm that learns from the data.

    Attributes:
        metrics: the names of the scalars that `learn` returns.
        member_counts: the vmap axes of `counts` for the members of a population, as a pytree
            prefix: None for counts that all members share, else 0.
        shard_counts: the same for shards.
        key: raw key data of the sampling stream, ``[2]``, or ``[S, 2]`` for S shards; () if
            nothing is sampled.
        axes: a pytree prefix of the inputs of a sharded learner: 0 where each shard has an array,
            None where all shards share one.
    """

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

    def device_state(self) -> Any:
        """Return the initial device state as NumPy arrays; () for none."""
        return ()

    def ingest(self, trajectory: Trajectory) -> None:
        """Do the host's part of ingesting a trajectory; `learn` does the rest on the device."""
        raise NotImplementedError

    @property
    def has_updates(self) -> bool:
        """Whether the trajectory that was ingested last makes any updates due."""
        return True

    def batches(self) -> Iterable[Any]:
        """Yield the inputs of each dispatch of `learn` for the last trajectory, at least one."""
        raise NotImplementedError

    def resized(self, device_state: Any) -> Any:
        """Return the device state with the shapes that the next inputs need."""
        return device_state

    def learn(self, state: Any, device_state: Any, inputs: Any, key: jax.Array, hp: Any) -> Learned:
        """Make the updates of one dispatch. Pure: it is traced into the learner's program."""
        raise NotImplementedError

    def counts(self) -> Any:
        """Return the counts with which `ingest_in_graph` continues, as NumPy arrays."""
        return ()

    def ingest_in_graph(self, trajectory: Trajectory, counts: Any, key: Any) -> tuple[Any, Any]:
        """Do the work of `ingest` and `batches` within a compiled program. Pure.

        Args:
            counts: the counts before the trajectory.
            key: this buffer's `key`; runs that share the program may have different keys.

        Returns:
            The inputs of the one dispatch, and the counts after it. Host counters do not change.
        """
        raise NotImplementedError

    def advance_counters(self, rows: int) -> None:
        """Count `rows` rows that a compiled program ingested, for `stats`."""

    def sync_counters(self, counts: Any) -> None:
        """Replace the host's counters by those that a compiled program returned."""

    def update_priorities(self, feedback: list[Any]) -> None:
        """Use the feedback that `learn` returned. Called once after all updates of a trajectory."""

    def stats(self) -> dict[str, float]:
        """Return the buffer's metrics, which are reported with the learner's."""
        return {}

    def memory_mb(self) -> tuple[float, float]:
        """Return the MiB that it occupies in host memory and in the learning devices' memory."""
        return 0.0, 0.0

    def state(self, device_state: Any) -> Saved:
        """Return the state that a checkpoint needs."""
        return {}, {}, None

    def restore(self, arrays: Arrays, data: Data, rows: RowSource | None) -> Any:
        """Restore a state that `state` returned, and return the device state; raise a
        `CheckpointError` if it does not fit this buffer."""
        return ()

    def truncate(self, env: int, last_obs: Obs, first_obs: Obs, device_state: Any) -> Any:
        """Truncate an environment's stored episode after its newest step, because it could not be
        continued. That step led to `last_obs`; the next episode begins with `first_obs`. Return
        the device state."""
        return device_state


def check_shards(data: Data, shards: int) -> None:
    """Check that a buffer's state was saved with `shards` shards.

    Raises:
        CheckpointError: it was saved with another number of shards.
    """
    saved = data.get("shards", 1)
    if saved != shards:
        raise CheckpointError(f"it was saved with --shards {saved}.")
