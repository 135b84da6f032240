"""What lies between a collected trajectory and the learner's program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from flatout.algorithms.base import Algorithm
from flatout.errors import CheckpointError
from flatout.types import Array, RowSource, Trajectory

Scalars = dict[str, jax.Array]
Learned = tuple[Any, Any, Scalars, Any]
"""The learning state, the device state, scalars and feedback after the updates."""
Arrays = dict[str, np.ndarray]
Data = dict[str, Any]
Saved = tuple[Arrays, Data, RowSource | None]
"""A buffer's state: arrays, JSON-compatible data, and rows of experience where it has any."""


class Buffer:
    """Turns trajectories into what `learn` is dispatched with, on the host or on a device.

    `learn` is pure and becomes a part of the learner's compiled program. The device state, what a
    buffer keeps in device memory, goes through that program. This base keeps nothing.

    Args:
        algorithm: learns from it.

    Attributes:
        metrics: the names of the scalars that `learn` returns.
        member_counts, shard_counts: pytree prefixes of `counts`: None for what all members of a
            population, or all shards, have in common, else 0.
        key: what its draws are made with, ``[2]`` or for S shards ``[S, 2]``; () for none.
        axes: a pytree prefix of the inputs of a sharded learner: 0 where each shard has its array,
            None where all shards have the same.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self.metrics = algorithm.metrics
        self.axes: Any = 0
        self.key: Any = ()
        self.member_counts: Any = 0
        self.shard_counts: Any = 0

    def inputs(self, trajectory: Trajectory) -> list[Any]:
        """The shapes of what `learn` is given for trajectories of such shapes; the first are those
        of dispatches with updates."""
        raise NotImplementedError

    def device_state(self) -> Any:
        """The device state at the start, as NumPy arrays; () for nothing."""
        return ()

    def ingest(self, trajectory: Trajectory) -> None:
        """Ingest a trajectory, as far as the host does that."""
        raise NotImplementedError

    @property
    def updates_due(self) -> bool:
        """Whether the ingested trajectory pays for updates: without, nothing is learned from it."""
        return True

    def batches(self) -> Iterable[Any]:
        """The inputs of the dispatches of `learn`, one or more, that the trajectory pays for."""
        raise NotImplementedError

    def resized(self, device_state: Any) -> Any:
        """The device state with the shapes that the next inputs need."""
        return device_state

    def learn(self, state: Any, device_state: Any, inputs: Any, key: jax.Array, hp: Any) -> Learned:
        """Make the updates of a dispatch."""
        raise NotImplementedError

    def counts(self) -> Any:
        """Where `fed` goes on, as NumPy arrays."""
        return ()

    def fed(self, trajectory: Trajectory, counts: Any, key: Any) -> tuple[Any, Any]:
        """`ingest` and `batches` within a compiled program: the inputs of the one dispatch, and
        the counts after it. Pure; nothing is said to the host.

        Args:
            key: this buffer's `key`; a program may be shared by runs that differ in it.
        """
        raise NotImplementedError

    def passed(self, rows: int) -> None:
        """A compiled program has ingested so many rows; `stats` tells of it."""

    def counted(self, counts: Any) -> None:
        """Take over what a compiled program has counted."""

    def update_priorities(self, feedback: list[Any]) -> None:
        """Take in what `learn` fed back, once per trajectory's updates."""

    def stats(self) -> dict[str, float]:
        """Numbers to report beside the learner's."""
        return {}

    def memory_mb(self) -> tuple[float, float]:
        """MiB that it takes in host memory and in the learning device's."""
        return 0.0, 0.0

    def state(self, device_state: Any) -> Saved:
        """What a checkpoint needs."""
        return {}, {}, None

    def restore(self, arrays: Arrays, data: Data, rows: RowSource | None) -> Any:
        """Take over such a state; returns the device state."""
        return ()

    def truncate(self, env: int, last_obs: Array, first_obs: Array, device_state: Any) -> Any:
        """Truncate an episode that could not be restored after its newest step, which led to
        `last_obs`; the next began with `first_obs`. Returns the device state."""
        return device_state


def check_shards(data: Data, shards: int) -> None:
    """Refuse a buffer's state that was saved with another number of shards.

    Raises:
        CheckpointError: it was.
    """
    saved = data.get("shards", 1)
    if saved != shards:
        raise CheckpointError(f"it was saved with --shards {saved}.")
