"""What lies between a collected trajectory and the learner's program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import jax
import numpy as np

from flatout.errors import CheckpointError
from flatout.types import RowSource, Trajectory

Scalars = dict[str, jax.Array]


class Buffer(Protocol):
    """Turns trajectories into what `learn` is dispatched with, on the host or on a device.

    `learn` is pure and becomes a part of the learner's compiled program; what a buffer keeps in
    device memory is `held`, which goes through it.
    """

    metrics: tuple[str, ...]
    """The names of the scalars that `learn` returns."""

    axes: Any
    """What parts of a sharded learner have of their own in the inputs (0) and share (None), as a
    pytree prefix."""

    def inputs(self, trajectory: Trajectory) -> list[Any]:
        """The shapes of what `learn` is given for trajectories of such shapes; the first are those
        of dispatches with updates."""
        ...

    def device_state(self) -> Any:
        """What lives in device memory at the start, as NumPy arrays; () for nothing."""
        ...

    def ingest(self, trajectory: Trajectory) -> None:
        """Ingest a trajectory, as far as that is the host's part."""
        ...

    def batches(self) -> Iterable[Any]:
        """The inputs of the dispatches of `learn`, one or more, that what was booked asks for."""
        ...

    def learn(
        self, state: Any, device_state: Any, inputs: Any, key: jax.Array
    ) -> tuple[Any, Any, Scalars, Any]:
        """The learning state, the device state, scalars and feedback after the updates."""
        ...

    def update_priorities(self, feedback: Any) -> None:
        """Take in what `learn` fed back, once per trajectory's updates."""
        ...

    def stats(self) -> dict[str, float]:
        """Numbers to report beside the learner's."""
        ...

    def memory_mb(self) -> tuple[float, float]:
        """MiB that it takes in host memory and in the learning device's."""
        ...

    def state(
        self, device_state: Any
    ) -> tuple[dict[str, np.ndarray], dict[str, Any], RowSource | None]:
        """Arrays, JSON-compatible data, and the rows of experience where there are any."""
        ...

    def restore(
        self, arrays: dict[str, np.ndarray], data: dict[str, Any], rows: RowSource | None
    ) -> Any:
        """Take over such a state; returns the device state."""
        ...

    def truncate(
        self, env: int, final_obs: np.ndarray, first_obs: np.ndarray, device_state: Any
    ) -> Any:
        """An environment's episode could not be restored: it ended, truncated, with its last
        step, and the next began with `first_obs`. Returns the device state."""
        ...


def check_shards(data: dict[str, Any], shards: int) -> None:
    """Refuse a buffer's state that was saved in another number of parts.

    Raises:
        CheckpointError: it was.
    """
    said = data.get("shards", max(len(data.get("parts", ())), 1))
    if said != shards:
        raise CheckpointError(f"it was saved with --shards {said}.")
