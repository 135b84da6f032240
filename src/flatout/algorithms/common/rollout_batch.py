"""The transitions of a trajectory, from which A2C and PPO learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax

from flatout.algorithms.common.actor_critic import Memory
from flatout.types import Obs


class RolloutBatch(NamedTuple):
    """The steps of a trajectory, flattened to rows ``[T * N, ...]``.

    `sample` is the action as it was sampled, before clipping. `mask` ``[T * N, P]`` says which
    outputs of the actor are allowed; it is None without action masks. `weight` is 0 for a row of
    padding and 1 for the others; it is None if there is no padding. `memory` is that of recurrent
    networks, whose rows are one sequence of L steps after another; else it is None.
    """

    obs: Obs
    mask: jax.Array | None
    sample: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    weight: jax.Array | None
    memory: Memory | None = None

    def sequences(self) -> RolloutBatch:
        """Return the batch of recurrent networks with whole sequences ``[S, L, ...]`` as its rows,
        so that minibatches consist of sequences; other batches as they are."""
        if self.memory is None:
            return self
        shape = self.memory.begins.shape
        return self._reshaped(lambda x: x.reshape(*shape, *x.shape[1:]))

    def steps(self) -> RolloutBatch:
        """Return the batch with single steps as its rows: the inverse of `sequences`."""
        if self.memory is None:
            return self
        return self._reshaped(lambda x: x.reshape(-1, *x.shape[2:]))

    def _reshaped(self, reshape: Callable[[jax.Array], jax.Array]) -> RolloutBatch:
        return jax.tree.map(reshape, self._replace(memory=None))._replace(memory=self.memory)
