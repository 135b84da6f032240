"""The buffer of on-policy algorithms: the learner gets each trajectory as it was collected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from flatout.algorithms.base import Algorithm, shapes_of
from flatout.buffers.base import Buffer, Learned
from flatout.randomness import wrap_key
from flatout.types import Trajectory


class OnPolicyBuffer(Buffer):
    """A buffer that passes the newest trajectory to the update, unchanged."""

    def __init__(self, algorithm: Algorithm) -> None:
        super().__init__(algorithm)
        self._ingested: Trajectory | None = None

    def inputs(self, trajectory: Trajectory) -> list[Any]:
        return [shapes_of(trajectory)]

    def ingest(self, trajectory: Trajectory) -> None:
        self._ingested = trajectory

    def batches(self) -> Iterator[Any]:
        yield self._ingested

    def ingest_in_graph(self, trajectory: Trajectory, counts: Any, key: Any) -> tuple[Any, Any]:
        return trajectory, counts

    def learn(self, state: Any, device_state: Any, inputs: Any, key: jax.Array, hp: Any) -> Learned:
        state, metrics, _ = self._algorithm.update(state, inputs, wrap_key(key), hp)
        return state, device_state, metrics, ()
