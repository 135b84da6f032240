"""One pure step of learning: what is compiled, and what a compiled loop may scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import Algorithm, State
from flatout.algorithms.parallel.packing import Bundle
from flatout.buffers.base import Buffer


class LearnerState(NamedTuple):
    """What learning changes: the algorithm's state, and the buffer's arrays in device memory."""

    learned: State
    store: Any


class Published(NamedTuple):
    """What an update gives beside the state.

    Attributes:
        arrays: the acting parameters that are no arrays of the state: the small ones in a vector,
            then large ones that `Algorithm.actor` computed.
        scalars: float32 ``[M + 1]``: the buffer's metrics, and whether everything is finite.
        feedback: for `Buffer.update_priorities`.
    """

    arrays: tuple[jax.Array, ...]
    scalars: jax.Array
    feedback: Any


class ActorLayout:
    """How the acting parameters are published: packed, without copying the state's large arrays.

    Attributes:
        bundle: how they are packed.
        origin: for each large array its place among the state's leaves, or None if it is computed.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self._actor = algorithm.actor
        self.bundle = Bundle(algorithm.actor_shapes)
        closed = jax.make_jaxpr(algorithm.actor)(algorithm.shapes, algorithm.hp)
        places = {id(variable): place for place, variable in enumerate(closed.jaxpr.invars)}
        outputs = [closed.jaxpr.outvars[index] for index in self.bundle.large]
        self.origin = [places.get(id(variable)) for variable in outputs]

    def publish(self, state: State, hp: Any) -> tuple[Any, ...]:
        """See `Published.arrays`; NumPy arrays are packed without a device."""
        params = self._actor(state, hp)
        on_host = isinstance(jax.tree.leaves(state)[0], np.ndarray)
        vector, *large = self.bundle.pack(params, np if on_host else jnp)
        computed = zip(large, self.origin, strict=True)
        return (vector, *(array for array, origin in computed if origin is None))

    def joined(self, arrays: tuple[Any, ...], leaves: list[Any]) -> tuple[Any, ...]:
        """The whole bundle, from what was published and the state's leaves."""
        vector, *computed = arrays
        rest = iter(computed)
        return (vector, *(next(rest) if at is None else leaves[at] for at in self.origin))


def make_learn_step(
    algorithm: Algorithm, buffer: Buffer
) -> Callable[[LearnerState, Any, jax.Array, Any], tuple[LearnerState, Published]]:
    """``learn_step(state, data, key, hp)``, pure, of one shard: the buffer's draw, the algorithm's
    updates, the averages over shards, and what is published.

    `data` are the buffer's inputs, the key is the learning stream's raw data.
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
