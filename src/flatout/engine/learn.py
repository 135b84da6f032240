"""Step 7 of the data flow, inline, and 6, fused: the learner makes all due updates in one
dispatch.

`make_learn_step` composes the learning step as one pure function, with a buffer's `learn`.
`Learner` compiles it for schedules; a compiled loop scans it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import Algorithm, State, named_leaves, shapes_of
from flatout.engine.buffer import Buffer, Saved
from flatout.engine.memory import live_mb
from flatout.engine.mesh import Mesh
from flatout.engine.programs import Programs
from flatout.engine.state import RunState
from flatout.errors import FlatoutError
from flatout.hardware import backend
from flatout.hardware.backend import matmul_precision
from flatout.packing import PackedParams, Packing
from flatout.randomness import raw
from flatout.spans import Spans
from flatout.types import Restart, Trajectory


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
        self._origins = [places.get(id(variable)) for variable in closed.jaxpr.outvars]
        self.origin = [self._origins[index] for index in self.packing.large]

    def publish(self, state: State, hp: Any) -> tuple[Any, ...]:
        """Return `Published.arrays` for a state. Pure."""
        vector, *large = self.packing.pack(self._actor(state, hp))
        computed = zip(large, self.origin, strict=True)
        return (vector, *(array for array, origin in computed if origin is None))

    def publish_on_host(self, learned: list[Any], hp: Any) -> tuple[Any, ...] | None:
        """Return the same as `publish` without a program, from the state's leaves and the
        hyper-parameters; None if the actor computes some of its parameters."""
        if None in self._origins:
            return None
        given = [*learned, *jax.tree.leaves(hp)]
        leaves = [given[origin] for origin in self._origins if origin is not None]
        return (self.packing.pack_small(leaves, np),)

    def joined(self, arrays: tuple[Any, ...], leaves: list[Any]) -> tuple[Any, ...]:
        """Join `Published.arrays` and the state's leaves to all packed acting parameters."""
        vector, *computed = arrays
        rest = iter(computed)
        return (vector, *(next(rest) if at is None else leaves[at] for at in self.origin))


def make_learn_step(
    algorithm: Algorithm, buffer: Buffer
) -> Callable[[RunState, Any, jax.Array, Any], tuple[RunState, Published]]:
    """Return the pure function ``learn_step(state, data, key, hp)`` of one shard, in which
    `RunState.learned` is the algorithm's state itself.

    It makes the buffer's draws and the algorithm's updates, averages over shards, and computes
    the published arrays. `data` are the buffer's inputs; `key` is raw key data of the learning
    stream.
    """
    layout = ActorLayout(algorithm)

    def learn_step(
        state: RunState, data: Any, key: jax.Array, hp: Any
    ) -> tuple[RunState, Published]:
        learned, store, metrics, feedback = buffer.learn(state.learned, state.store, data, key, hp)
        learned, metrics = algorithm.shards.sync_now((learned, metrics))
        arrays = layout.publish(learned, hp)
        scalars = jnp.stack([metrics[name].astype(jnp.float32) for name in buffer.metrics])
        finite = jnp.isfinite(scalars).all()
        for array in arrays:
            finite &= jnp.isfinite(array).all()
        scalars = jnp.append(scalars, finite.astype(jnp.float32))
        return state._replace(learned=learned, store=store), Published(arrays, scalars, feedback)

    return learn_step


MOST_NAMED = 6
"""Maximum number of metrics and leaves that a message about divergence names."""

LearnResult = tuple[RunState, tuple[Any, ...], dict[str, float]]
"""The new state; the acting parameters, packed, of which large arrays are the state's and valid
until it is learned from; and the metrics by name."""


class Learner:
    """The compiled programs that turn a state and a trajectory into a new state.

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
        hp: packed hyper-parameters, as `step` takes them.
        bytes_sent: bytes of trajectories or batches that were copied to the devices.
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
        self.hp = mesh.put(self.packed_hp(algorithm.hp, np), None)
        self.trajectory: Trajectory | None = None  # its shapes
        self.bytes_sent = 0
        self._shared, self._programs = programs or Programs(), dict[Any, Any]()

    def packed_hp(self, hp: Any, xp: Any = jnp) -> Any:
        """Return hyper-parameters as `step` takes them; `xp=numpy` packs on the host."""
        return self._hp_layout.pack(hp, xp)

    def compile_update(self, trajectory: Trajectory) -> Any:
        """Compile the programs for trajectories of these shapes. Return the one with updates.

        Args:
            trajectory: arrays or `jax.ShapeDtypeStruct`.
        """
        self.trajectory = trajectory
        store = shapes_of(self._inside(self.buffer.store()))
        first, *_ = [self._compile(store, inputs) for inputs in self.buffer.inputs(trajectory)]
        return first

    def _inside(self, store: Any) -> Any:
        """Return what the compiled program takes of a store."""
        return store if self.buffer.in_program else ()

    def _compile(self, store: Any, inputs: Any) -> Any:
        shapes = signature((store, inputs))

        def make() -> Any:
            program = self.mesh.program(
                self.step, (None, 0, self.buffer.axes, None, None), (None, 0, None, None, 0),
                self._shardings,
            )  # fmt: skip
            with matmul_precision(self.device, self.precision):
                lowered = program.lower(self._leaf_shapes, store, inputs, self.key, self.hp)
                return backend.compiled(lowered, self.device)

        program = self._programs[shapes] = self._shared.get(("learn", shapes), make)
        return program

    def start(self) -> RunState:
        """Draw the initial state."""
        learned = self.put(self._algorithm.init(self._init_key, self._algorithm.hp))
        return RunState(learned, self._placed(self.buffer.store()), self.buffer.counts())

    def restored(self, learned: Any, saved: Saved) -> RunState:
        """Return the state with a learning state of NumPy arrays and a result of `Buffer.saved`."""
        store, counts = self.buffer.restored(*saved)
        return RunState(self.put(learned), self._placed(store), counts)

    def put(self, learned: Any) -> list[Any]:
        """Return `RunState.learned` for a learning state of NumPy arrays."""
        return jax.device_put(jax.tree.leaves(learned), self._shardings)

    def host_state(self, learned: list[Any], optimiser: bool = True) -> Any:
        """Return the learning state of `RunState.learned` as NumPy arrays, with or without the
        optimiser's."""
        state = jax.tree.unflatten(self._tree, learned)
        return jax.device_get(state if optimiser else state._replace(opt=()))

    def _placed(self, store: Any) -> Any:
        """Return a store where the compiled program, or the host, takes it."""
        return self.mesh.put(store, 0) if self.buffer.in_program else store

    def learn(self, state: RunState, trajectory: Trajectory) -> LearnResult:
        """Learn from a trajectory, and wait for the device. The state is consumed.

        Raises:
            FlatoutError: the loss or the parameters are no longer finite.
        """
        spans, buffer, counts = self.spans, self.buffer, state.counts
        on_cpu = backend.shares_memory(self.device)
        feedback: list[Any] = []
        values: list[Any] = []
        published: Any = ()
        with spans.span("replay"):
            due = buffer.ingest(state.store, counts, trajectory)
            inputs = next(due.batches, None)
        store = due.store if due.store is state.store else self._placed(due.store)
        learned, inside = state.learned, self._inside(store)
        working = "learn" if due.updates else "replay"  # without updates it stores rows
        while inputs is not None:
            if not on_cpu:
                self.bytes_sent += sum(array.nbytes for array in jax.tree.leaves(inputs))
                with spans.span("transfer"):
                    inputs = jax.block_until_ready(self.mesh.put(inputs, buffer.axes))
            program = self._program(inside, inputs)
            with spans.span(working):
                learned, inside, published, scalars, errors = program(
                    learned, inside, inputs, self.key, self.hp
                )
                if on_cpu:
                    scalars = np.asarray(scalars)
            feedback.append(errors)
            values.append(scalars)
            with spans.span("replay"):
                inputs = next(due.batches, None)
        if not on_cpu:  # the device worked while batches were gathered
            with spans.span(working):
                values = [np.asarray(scalars) for scalars in values]  # waits for the device
        store = inside if buffer.in_program else store
        if jax.tree.leaves(feedback):
            with spans.span("replay"):
                store = buffer.update_priorities(store, due, feedback)
        metrics = self.metrics(values, lambda: learned) | buffer.stats(store, counts)
        state = RunState(learned, store, counts, state.environments)
        return state, self._layout.joined(published, learned), metrics

    def _program(self, store: Any, inputs: Any) -> Callable[..., Any]:
        """Return the program for a dispatch with inputs of these shapes; compile it if needed."""
        program = self._programs.get(signature((store, inputs)))
        if program is None:
            with self.spans.span("compile"):
                program = self._compile(shapes_of(store), shapes_of(inputs))
        return program

    def metrics(self, values: list[np.ndarray], learned: Callable[[], Any]) -> dict[str, float]:
        """Return the metrics by name, from `Published.scalars` of one or more dispatches; `learned`
        returns `RunState.learned` after them, for a message.

        Raises:
            FlatoutError: the loss or the parameters are no longer finite.
        """
        names = (*self.buffer.metrics, "finite")
        metrics = dict(zip(names, _merge(values, names).tolist(), strict=True))
        if not metrics.pop("finite"):
            bad = [name for name, value in metrics.items() if not np.isfinite(value)]
            raise _diverged([*bad, *_not_finite(self.host_state(learned()))])
        return metrics

    def live_mb(self, state: RunState) -> dict[str, dict[str, float]]:
        """See `flatout.engine.memory.live_mb`."""
        learned = jax.tree.unflatten(self._tree, state.learned)
        return live_mb({"model": learned._replace(opt=()), "optimiser": learned.opt,
                        "replay": self._inside(state.store)})  # fmt: skip

    def truncate(self, state: RunState, restarts: Sequence[Restart]) -> RunState:
        """Truncate the episodes of restarted environments after the newest step; see
        `Buffer.truncate` and `Algorithm.forget`. What is on a device is copied once for all."""
        if not restarts:
            return state
        store = self.buffer.truncate(state.store, state.counts, restarts)
        learned = state.learned
        if (forget := self._algorithm.forget) is not None:
            changed = self.host_state(learned)
            for env, _, _ in restarts:
                changed = forget(changed, env)
            learned = self.put(changed)
        return state._replace(learned=learned, store=self._placed(store))

    def publish(self, learned: list[Any]) -> tuple[Any, ...]:
        """Return the packed acting parameters of `RunState.learned`. A program on the learning
        devices packs them, so that nothing else is moved; large arrays are the state's."""

        def pack(learned: list[Any], hp: jax.Array) -> tuple[Any, ...]:
            state = jax.tree.unflatten(self._tree, learned)
            return self._layout.publish(state, self._hp_layout.unpack(hp))

        def make() -> Any:
            whole = self.mesh.whole
            program = jax.jit(pack, in_shardings=(self._shardings, whole), out_shardings=whole)
            with matmul_precision(self.device, self.precision):
                return backend.compiled(program.lower(self._leaf_shapes, self.hp), self.device)

        program = self._shared.get(("publish", self.device), make)
        return self._layout.joined(program(learned, self.hp), learned)

    def publish_once(self, learned: list[Any]) -> tuple[Any, ...]:
        """Return the same as `publish`, for a caller that publishes through `learn` from then on:
        NumPy packs most actors sooner than the program is compiled."""
        arrays = self._layout.publish_on_host(learned, self._algorithm.hp)
        if arrays is None:
            return self.publish(learned)
        return self._layout.joined(self.mesh.put(arrays, None), learned)

    def acting(self, leaves: list[Any], hp: jax.Array) -> Any:
        """Return the acting parameters from the first and last arguments of `step`. Pure."""
        state = jax.tree.unflatten(self._tree, leaves)
        return self._algorithm.actor(state, self._hp_layout.unpack(hp))

    def step(self, leaves: list[Any], store: Any, data: Any, key: jax.Array, hp: jax.Array) -> Any:
        """Call `learn_step` with the state as leaves, because each leaf may have a sharding, and
        with packed hyper-parameters. Pure."""
        state = RunState(jax.tree.unflatten(self._tree, leaves), store)
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


def refuse_diverged(state: Any) -> None:
    """Raise the same error as `Learner.metrics` if a learning state of NumPy arrays contains NaN or
    infinity. Metrics are older than the last gradient step, and `Published.scalars` leaves out
    large arrays and those that do not act."""
    if bad := _not_finite(state):
        raise _diverged(bad)


def _diverged(bad: list[str]) -> FlatoutError:
    """Return the error for metrics and leaves of these names that are not finite."""
    rest = [f"{len(bad) - MOST_NAMED} more"] if len(bad) > MOST_NAMED else []
    what = " and ".join([", ".join(bad[:MOST_NAMED]) or "the acting parameters", *rest])
    advice = "lower the learning rate or the largest gradient norm, or look at the rewards' size"
    for name, seen in ("obs_moments", "observations"), ("reward_moments", "rewards"):
        if any(name in path for path in bad):  # statistics, which no learning rate changes
            advice = f"{seen} are too large to be normalised in float32: scale or clip them"
            break
    return FlatoutError(f"learning diverged: {what} became NaN or infinite; {advice}.")


def _not_finite(state: Any) -> list[str]:
    """Return the paths of a learning state's leaves that contain NaN or infinity."""
    arrays = ((path, np.asarray(raw(leaf))) for path, leaf in named_leaves(state))
    return [
        path for path, array in arrays
        if array.dtype.kind not in "biu" and not np.isfinite(np.asarray(array, np.float32)).all()
    ]  # fmt: skip


def signature(tree: Any) -> tuple[Any, ...]:
    """Return the shapes of a pytree's arrays, which identify a compiled program."""
    return tuple(leaf.shape for leaf in jax.tree.leaves(tree))
