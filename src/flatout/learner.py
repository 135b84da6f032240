"""The learner: an algorithm's compiled `update` on one device, one dispatch per trajectory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import Algorithm, shapes_of, wrap_key
from flatout.backend import full_precision
from flatout.errors import FlatoutError
from flatout.packing import Packing
from flatout.spans import Spans
from flatout.types import Device, Trajectory


class Learner:
    """Holds the learning state and turns trajectories into new parameters.

    Args:
        algorithm: its pure functions.
        device: where learning runs.
        init_key: raw key data (uint32) that draws the initial state.
        key: raw key data of the learning stream.
        spans: where the time goes.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        device: Device,
        init_key: np.ndarray,
        key: np.ndarray,
        spans: Spans,
    ) -> None:
        self._algorithm = algorithm
        self._init_key = init_key
        self._key = key
        self._spans = spans
        self.device = device
        self.shapes = algorithm.shapes
        self._packing = Packing(algorithm.actor(self.shapes))
        self.state: Any = None
        self.packed: jax.Array | None = None
        self._updates: dict[Any, Any] = {}

    def compile_update(self, trajectory: Trajectory) -> Any:
        """Compile the update for trajectories of these shapes, or find it compiled.

        Args:
            trajectory: arrays, or `jax.ShapeDtypeStruct` in their place.
        """
        shapes = shapes_of(trajectory)
        signature = tuple((leaf.shape, leaf.dtype.str) for leaf in jax.tree.leaves(shapes))
        if signature not in self._updates:
            on = jax.sharding.SingleDeviceSharding(self.device)
            program = jax.jit(self._update, donate_argnums=0, in_shardings=on, out_shardings=on)
            with full_precision(self.device):
                self._updates[signature] = program.lower(self.shapes, shapes, self._key).compile()
        return self._updates[signature]

    def start(self) -> None:
        """Draw the initial state."""
        self.restore(self._algorithm.init(self._init_key))

    def update(self, trajectory: Trajectory) -> dict[str, float]:
        """Learn from one trajectory, waiting for the device.

        Returns:
            The algorithm's metrics.

        Raises:
            FlatoutError: the loss or the parameters are no longer finite.
        """
        program = self._updates.get(
            tuple((leaf.shape, leaf.dtype.str) for leaf in jax.tree.leaves(trajectory))
        )
        if program is None:
            with self._spans.span("compile"):
                program = self.compile_update(trajectory)
        if self.device.platform != "cpu":
            with self._spans.span("transfer"):
                trajectory = jax.block_until_ready(jax.device_put(trajectory, self.device))
        with self._spans.span("learn"):
            self.state, self.packed, scalars = program(self.state, trajectory, self._key)
            values = np.asarray(scalars)  # waits for the device
        metrics = dict(zip((*self._algorithm.metrics, "finite"), values.tolist(), strict=True))
        if not metrics.pop("finite"):
            bad = [name for name, value in metrics.items() if not np.isfinite(value)]
            raise FlatoutError(
                f"learning diverged: {', '.join(bad) if bad else 'the parameters'} became NaN or "
                "infinite; lower --learning-rate or --max-grad-norm, or look at the rewards' size."
            )
        return metrics

    def host_state(self) -> Any:
        """The learning state as NumPy arrays."""
        return jax.device_get(self.state)

    def restore(self, state: Any) -> None:
        """Take over a state of NumPy arrays with this learner's structure."""
        self.state = jax.device_put(state, self.device)
        self.packed = jax.device_put(
            self._packing.pack_host(self._algorithm.actor(state)), self.device
        )

    def _pack(self, state: Any) -> jax.Array:
        return self._packing.pack(self._algorithm.actor(state))

    def _update(
        self, state: Any, trajectory: Trajectory, key: jax.Array
    ) -> tuple[Any, jax.Array, jax.Array]:
        state, metrics, _ = self._algorithm.update(state, trajectory, wrap_key(key))
        packed = self._pack(state)
        scalars = [metrics[name].astype(jnp.float32) for name in self._algorithm.metrics]
        finite = jnp.isfinite(packed).all() & jnp.isfinite(jnp.stack(scalars)).all()
        return state, packed, jnp.stack([*scalars, finite.astype(jnp.float32)])
