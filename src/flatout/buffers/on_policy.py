"""The buffer of on-policy algorithms: the learner gets each trajectory as it was collected."""

from __future__ import annotations

from typing import Any

import jax

from flatout.algorithms.base import shapes_of
from flatout.buffers.base import Buffer, Due, Ingested, Learned
from flatout.randomness import wrap_key
from flatout.types import Trajectory


class OnPolicyBuffer(Buffer):
    """A buffer that passes the newest trajectory to the update, unchanged."""

    def inputs(self, trajectory: Trajectory) -> list[Any]:
        return [shapes_of(trajectory)]

    def ingest(self, store: Any, counts: Any, trajectory: Trajectory) -> Ingested:
        return store, Due(1, iter([trajectory]))

    def ingest_in_graph(
        self, trajectory: Trajectory, store: Any, counts: Any, key: Any
    ) -> tuple[Any, Any]:
        return trajectory, counts

    def learn(self, state: Any, store: Any, inputs: Any, key: jax.Array, hp: Any) -> Learned:
        state, metrics, _ = self._algorithm.update(state, inputs, wrap_key(key), hp)
        return state, store, metrics, ()
