"""The learning step as one pure function, which the learner compiles and a compiled loop scans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flatout.algorithms.base import Algorithm, State
from flatout.buffers.base import Buffer
from flatout.packing import PackedParams


class LearnerState(NamedTuple):
    """All that learning changes: the algorithm's state, and the buffer's store."""

    learned: State
    store: Any


class Published(NamedTuple):
    """The results of a learning step in addition to the new state.

    Attributes:
        arrays: the acting parameters, except large arrays of the state itself: one vector of all
            small arrays, then each large array that `Algorithm.actor` computes.
        scalars: float32 ``[M + 1]``: the buffer's M metrics; then 1 if they and `arrays` are
            finite, else 0.
        feedback: the argument of `Buffer.update_priorities`.
    """

    arrays: tuple[jax.Array, ...]
    scalars: jax.Array
    feedback: Any


class ActorLayout:
    """The layout in which acting parameters are published. They are packed, except that large
    arrays of the state are published without a copy.

    Attributes:
        packing: the packing of acting parameters.
        origin: for each large array its index in the state's leaves, or None if it is computed.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self._actor = algorithm.actor
        self.packing = PackedParams(algorithm.actor_shapes)
        closed = jax.make_jaxpr(algorithm.actor)(algorithm.shapes, algorithm.hp)
        places = {id(variable): place for place, variable in enumerate(closed.jaxpr.invars)}
        outputs = [closed.jaxpr.outvars[index] for index in self.packing.large]
        self.origin = [places.get(id(variable)) for variable in outputs]

    def publish(self, state: State, hp: Any) -> tuple[Any, ...]:
        """Return `Published.arrays` for a state. Pure."""
        vector, *large = self.packing.pack(self._actor(state, hp))
        computed = zip(large, self.origin, strict=True)
        return (vector, *(array for array, origin in computed if origin is None))

    def joined(self, arrays: tuple[Any, ...], leaves: list[Any]) -> tuple[Any, ...]:
        """Join `Published.arrays` and the state's leaves to all packed acting parameters."""
        vector, *computed = arrays
        rest = iter(computed)
        return (vector, *(next(rest) if at is None else leaves[at] for at in self.origin))


def make_learn_step(
    algorithm: Algorithm, buffer: Buffer
) -> Callable[[LearnerState, Any, jax.Array, Any], tuple[LearnerState, Published]]:
    """Return the pure function ``learn_step(state, data, key, hp)`` of one shard.

    It makes the buffer's draws and the algorithm's updates, averages over shards, and computes
    the published arrays. `data` are the buffer's inputs; `key` is raw key data of the learning
    stream.
    """
    layout = ActorLayout(algorithm)

    def learn_step(
        state: LearnerState, data: Any, key: jax.Array, hp: Any
    ) -> tuple[LearnerState, Published]:
        learned, store, metrics, feedback = buffer.learn(state.learned, state.store, data, key, hp)
        learned, metrics = algorithm.shards.sync_now((learned, metrics))
        arrays = layout.publish(learned, hp)
        scalars = jnp.stack([metrics[name].astype(jnp.float32) for name in buffer.metrics])
        finite = jnp.isfinite(scalars).all()
        for array in arrays:
            finite &= jnp.isfinite(array).all()
        scalars = jnp.append(scalars, finite.astype(jnp.float32))
        return LearnerState(learned, store), Published(arrays, scalars, feedback)

    return learn_step
