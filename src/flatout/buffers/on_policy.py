"""On-policy learning: a trajectory goes into the update as it was collected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from flatout.algorithms.base import Algorithm, shapes_of, wrap_key
from flatout.buffers.base import Scalars
from flatout.types import RowSource, Trajectory


class OnPolicyBuffer:
    """Keeps nothing."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self._ingested: Trajectory | None = None
        self.metrics = algorithm.metrics
        self.axes: Any = 0

    def inputs(self, trajectory: Trajectory) -> list[Any]:
        """The trajectory's own shapes."""
        return [shapes_of(trajectory)]

    def device_state(self) -> Any:
        """Nothing lives in device memory."""
        return ()

    def ingest(self, trajectory: Trajectory) -> None:
        """Nothing is kept of it."""
        self._ingested = trajectory

    def batches(self) -> Iterator[Any]:
        """The trajectory itself."""
        yield self._ingested

    def learn(
        self, state: Any, device_state: Any, inputs: Any, key: jax.Array
    ) -> tuple[Any, Any, Scalars, Any]:
        """All of the trajectory's updates."""
        state, metrics, _ = self._algorithm.update(state, inputs, wrap_key(key))
        return state, device_state, metrics, ()

    def update_priorities(self, feedback: list[Any]) -> None:
        """Nothing to take in."""

    def stats(self) -> dict[str, float]:
        """Nothing to report."""
        return {}

    def memory_mb(self) -> tuple[float, float]:
        """Nothing."""
        return 0.0, 0.0

    def state(
        self, device_state: Any
    ) -> tuple[dict[str, np.ndarray], dict[str, Any], RowSource | None]:
        """Nothing."""
        return {}, {}, None

    def restore(
        self, arrays: dict[str, np.ndarray], data: dict[str, Any], rows: RowSource | None
    ) -> Any:
        """Nothing."""
        return ()

    def truncate(
        self, env: int, final_obs: np.ndarray, first_obs: np.ndarray, device_state: Any
    ) -> Any:
        """Nothing is kept that could be wrong."""
        return device_state
