"""Step 7 of the data flow, inline, and 6, fused: the learner makes all due updates in one dispatch.

It compiles a buffer's `learn` (`flatout.learner.learn_step`); schedules call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from flatout.algorithms.base import Algorithm, named_leaves, shapes_of
from flatout.buffers.base import Arrays, Buffer, Data, Saved
from flatout.config.placement import CPU
from flatout.errors import FlatoutError
from flatout.hardware import backend
from flatout.hardware.backend import matmul_precision
from flatout.learner.learn_step import ActorLayout, LearnerState, make_learn_step
from flatout.learner.memory import live_mb
from flatout.learner.mesh import Mesh
from flatout.learner.programs import Programs
from flatout.packing import Packing
from flatout.spans import Spans
from flatout.types import RowSource, Trajectory

MOST_NAMED = 6
"""Maximum number of metrics and leaves that a message about divergence names."""


class Learner:
    """The learning state and the compiled programs that turn trajectories into new parameters.

    Args:
        algorithm: the algorithm's pure functions.
        buffer: turns trajectories into batches.
        mesh: the learning devices.
        init_key: raw key data (uint32 ``[2]``) for the initial state.
        key: raw key data (uint32 ``[2]``) of the learning stream.
        spans: the spans of the learning thread.
        precision: the precision of matrix products on a GPU, see `RunConfig`.
        programs: the programs that runs of this shape share.

    Attributes:
        shapes: the shapes of the learning state.
        packed_params: the newest acting parameters, packed.
        hp: packed hyper-parameters, as `learn` takes them.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        buffer: Buffer,
        mesh: Mesh,
        init_key: np.ndarray,
        key: np.ndarray,
        spans: Spans,
        precision: str = "highest",
        programs: Programs | None = None,
    ) -> None:
        self._algorithm = algorithm
        self.buffer = buffer
        self._init_key = init_key
        self.key = key
        self.spans = spans
        self.precision = precision
        self.mesh = mesh
        self._shardings = mesh.state(jax.tree.leaves(algorithm.shapes))
        self.device = mesh.first
        self.shapes = algorithm.shapes
        self._leaf_shapes, self._tree = jax.tree.flatten(self.shapes)
        self._layout = ActorLayout(algorithm)
        self._learn_step = make_learn_step(algorithm, buffer)
        self._hp_layout = Packing(algorithm.hp)  # passing one array is faster than many
        self.hp = mesh.put(self._hp_layout.pack(algorithm.hp, np), None)
        self._leaves: list[Any] = []
        self._device_state: Any = None
        self.packed_params: tuple[Any, ...] = ()
        self.trajectory: Trajectory | None = None  # its shapes
        self._shared, self._programs = programs or Programs(), dict[Any, Any]()

    def compile_update(self, trajectory: Trajectory) -> Any:
        """Compile the programs for trajectories of these shapes. Return the one with updates.

        Args:
            trajectory: arrays or `jax.ShapeDtypeStruct`.
        """
        self.trajectory = trajectory
        device_state = self._device_state
        if device_state is None:
            device_state = self.buffer.device_state()
        shapes = self.buffer.inputs(trajectory)
        first, *_ = [self._compile(shapes_of(device_state), inputs) for inputs in shapes]
        return first

    def _compile(self, device_state: Any, inputs: Any) -> Any:
        shapes = signature((device_state, inputs))

        def make() -> Any:
            program = self.mesh.program(
                self.learn, (None, 0, self.buffer.axes, None, None), (None, 0, None, None, 0),
                self._shardings,
            )  # fmt: skip
            with matmul_precision(self.device, self.precision):
                lowered = program.lower(self._leaf_shapes, device_state, inputs, self.key, self.hp)
                return backend.compiled(lowered, self.device)

        if shapes not in self._programs:
            self._programs[shapes] = self._shared.get(("learn", shapes), make)
        return self._programs[shapes]

    def start(self) -> None:
        """Draw the initial state."""
        self._device_state = self.mesh.put(self.buffer.device_state(), 0)
        self.adopt(self._algorithm.init(self._init_key, self._algorithm.hp))

    def update(self, trajectory: Trajectory) -> dict[str, float]:
        """Learn from a trajectory, wait for the device, and return the metrics by name.

        Raises:
            FlatoutError: the loss or the parameters are no longer finite.
        """
        spans, buffer = self.spans, self.buffer
        feedback: list[Any] = []
        values: list[Any] = []
        published: Any = ()
        with spans.span("replay"):
            buffer.ingest(trajectory)
            batches = iter(buffer.batches())
            inputs = next(batches, None)
        working = "learn" if buffer.has_updates else "replay"  # without updates it stores rows
        while inputs is not None:
            resized = buffer.resized(self._device_state)
            if resized is not self._device_state:
                self._device_state = self.mesh.put(resized, 0)
            if self.device.platform != "cpu":
                with spans.span("transfer"):
                    inputs = jax.block_until_ready(self.mesh.put(inputs, buffer.axes))
            program = self._program(inputs)
            with spans.span(working):
                self._leaves, self._device_state, published, scalars, errors = program(
                    self._leaves, self._device_state, inputs, self.key, self.hp
                )
                if self.device.platform == "cpu":
                    scalars = np.asarray(scalars)
            feedback.append(errors)
            values.append(scalars)
            with spans.span("replay"):
                inputs = next(batches, None)
        if self.device.platform != "cpu":  # the device worked while batches were gathered
            with spans.span(working):
                values = [np.asarray(scalars) for scalars in values]  # waits for the device
        if jax.tree.leaves(feedback):
            with spans.span("replay"):
                buffer.update_priorities(feedback)
        self.packed_params = self._layout.joined(published, self._leaves)
        return self.metrics(values)

    def _program(self, inputs: Any) -> Callable[..., Any]:
        """Return the program for a dispatch with inputs of these shapes; compile it if needed."""
        program = self._programs.get(signature((self._device_state, inputs)))
        if program is None:
            with self.spans.span("compile"):
                program = self._compile(shapes_of(self._device_state), shapes_of(inputs))
        return program

    def metrics(self, values: list[np.ndarray]) -> dict[str, float]:
        """Return the metrics by name, from `Published.scalars` of one or more dispatches.

        Raises:
            FlatoutError: the loss or the parameters are no longer finite.
        """
        names = (*self.buffer.metrics, "finite")
        metrics = dict(zip(names, _merge(values, names).tolist(), strict=True))
        if not metrics.pop("finite"):
            bad = [name for name, value in metrics.items() if not np.isfinite(value)]
            bad += _not_finite(self.host_state())
            rest = [f"{len(bad) - MOST_NAMED} more"] if len(bad) > MOST_NAMED else []
            what = " and ".join([", ".join(bad[:MOST_NAMED]) or "the acting parameters", *rest])
            advice = (
                "lower the learning rate or the largest gradient norm, or look at the rewards' size"
            )
            for name, seen in ("obs_moments", "observations"), ("reward_moments", "rewards"):
                if any(name in path for path in bad):  # statistics, which no learning rate changes
                    advice = f"{seen} are too large to be normalised in float32: scale or clip them"
                    break
            raise FlatoutError(f"learning diverged: {what} became NaN or infinite; {advice}.")
        return metrics | self.buffer.stats()

    def host_state(self) -> Any:
        """Return the learning state as NumPy arrays."""
        return jax.tree.unflatten(self._tree, jax.device_get(self._leaves))

    def live_mb(self) -> dict[str, dict[str, float]]:
        """See `flatout.learner.memory.live_mb`."""
        state = jax.tree.unflatten(self._tree, self._leaves)
        return live_mb({"model": state._replace(opt=()), "optimiser": state.opt,
                        "replay": self._device_state})  # fmt: skip

    def buffer_state(self) -> Saved:
        """See `Buffer.state`."""
        return self.buffer.state(self._device_state)

    def restore(self, state: Any, arrays: Arrays, data: Data, rows: RowSource | None) -> None:
        """Restore the learning state (NumPy arrays) and the buffer's."""
        device_state = self.buffer.restore(arrays, data, rows)
        self._device_state = self.mesh.put(device_state, 0)
        self.adopt(state)

    def truncate(self, env: int, last_obs: np.ndarray, first_obs: np.ndarray) -> None:
        """Truncate an environment's episode after the newest step; see `Buffer.truncate` and
        `Algorithm.forget`."""
        device_state = self.buffer.truncate(env, last_obs, first_obs, self._device_state)
        self._device_state = self.mesh.put(device_state, 0)
        if (forget := self._algorithm.forget) is not None:
            state = forget(self.host_state(), env)
            self._leaves = jax.device_put(jax.tree.leaves(state), self._shardings)

    def adopt(self, state: Any) -> None:
        """Set the learning state from NumPy arrays. The buffer does not change."""
        self._leaves = jax.device_put(jax.tree.leaves(state), self._shardings)
        with jax.default_device(backend.device(CPU)):
            published = self._layout.publish(state, self._algorithm.hp)
        arrays = self.mesh.put(tuple(map(np.asarray, published)), (None,) * len(published))
        self.packed_params = self._layout.joined(arrays, self._leaves)

    @property
    def carried(self) -> tuple[list[Any], Any]:
        """The learning state's leaves and the buffer's device state, as `learn` takes them."""
        return self._leaves, self._device_state

    def carry(self, leaves: list[Any], device_state: Any) -> None:
        """Set the values of `carried` to those that a compiled loop returned. `packed_params` is
        empty until `publish` is called."""
        self._leaves, self._device_state, self.packed_params = leaves, device_state, ()

    def publish(self) -> None:
        """Pack the acting parameters of the newest state into `packed_params`."""
        self.adopt(self.host_state())

    def acting(self, leaves: list[Any], hp: jax.Array) -> Any:
        """Return the acting parameters from the first and last arguments of `learn`. Pure."""
        state = jax.tree.unflatten(self._tree, leaves)
        return self._algorithm.actor(state, self._hp_layout.unpack(hp))

    def learn(self, leaves: list[Any], store: Any, data: Any, key: jax.Array, hp: jax.Array) -> Any:
        """Call `learn_step` with the state as leaves, because each leaf may have a sharding, and
        with packed hyper-parameters. Pure."""
        state = LearnerState(jax.tree.unflatten(self._tree, leaves), store)
        state, published = self._learn_step(state, data, key, self._hp_layout.unpack(hp))
        return jax.tree.leaves(state.learned), state.store, *published


def _merge(values: list[np.ndarray], names: tuple[str, ...]) -> np.ndarray:
    """Merge several dispatches' scalars: the sum of updates, and means weighted by updates."""
    if len(values) == 1:
        return values[0]
    table = np.stack(values)
    updates = table[:, names.index("updates")]
    joined = (table * updates[:, None]).sum(0) / updates.sum()
    joined[names.index("updates")] = updates.sum()
    joined[names.index("finite")] = table[:, names.index("finite")].min()
    return joined


def _not_finite(state: Any) -> list[str]:
    """Return the paths of a learning state's leaves that contain NaN or infinity."""
    return [
        path for path, leaf in named_leaves(state)
        if leaf.dtype.kind not in "biu" and not np.isfinite(np.asarray(leaf, np.float32)).all()
    ]  # fmt: skip


def signature(tree: Any) -> tuple[Any, ...]:
    """Return the shapes of a pytree's arrays, which identify a compiled program."""
    return tuple(leaf.shape for leaf in jax.tree.leaves(tree))
