"""The iteration as pure functions of one state, for training loops that users write.

`flatout.engine.make` returns them. They call `Loop.collect` and `Loop.learn`, as the fused schedule
does."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from flatout.algorithms.base import State, shapes_of
from flatout.engine.loop import Loop
from flatout.engine.rollout_state import Ends, RolloutState
from flatout.engine.state import RunState
from flatout.errors import UsageError
from flatout.hardware.backend import matmul_precision
from flatout.randomness import ACT, ENVS, INIT, LEARN, REPLAY, is_typed_key, raw_key
from flatout.types import Trajectory

LoopMetrics = dict[str, jax.Array]
"""Metrics of one iteration, scalars by name; docs/own-loop.md lists them."""


OF_EPISODES = ("episodes", "return_mean", "length_mean", "healthy")
"""The metrics that do not come from the algorithm."""


class Keys(NamedTuple):
    """Raw keys of random streams, uint32 ``[2]`` each, which never change: draws are functions of a
    key and a counter of the state. `replay` is () for algorithms without replay."""

    learn: Any
    replay: Any
    act: Any


class LoopState(NamedTuple):
    """A whole run between two calls, a pytree: the parts of `RunState`, and their constants.

    A schedule keeps keys and hyper-parameters outside of `RunState`, because they belong to the run
    and not to its progress. Here they are part of the state, so that `jax.vmap` maps over seeds and
    hyper-parameters, and no function has another argument.

    Attributes:
        learned: the algorithm's state: ``learned.params``, ``learned.opt``, ``learned.counters``.
        store, counts: the replayed experience and its counters; () for on-policy algorithms.
        environments: the environments, their current observations and the key of their resets and
            steps.
        keys: the keys of all other random streams.
        hp: hyper-parameters that change no shape, a named tuple of float32 arrays.
        ends: the ends of episodes in the newest trajectory.
    """

    learned: State
    store: Any
    counts: Any
    environments: RolloutState
    keys: Keys
    hp: Any
    ends: Ends


class OwnLoop(NamedTuple):
    """Four pure functions, which `jax.jit`, `jax.vmap` and `jax.lax.scan` accept.

    Attributes:
        init: ``(key, hp=None) -> state``. ``jax.random.key(n)`` begins the run that ``seed=n``
            begins elsewhere. `hp` are by default those of the settings.
        collect: ``state -> trajectory, state``: the next T steps of N environments, arrays
            ``[T, N, ...]``.
        learn: ``(state, trajectory) -> state, metrics``: the updates that a trajectory pays for,
            and scalars ``[]`` by name.
        loop: ``(state, n) -> state, metrics``: `n` times both, with metrics ``[n]``; `n` is a
            Python int.

    No function consumes its arguments: a state may be used again, also after `learn`. A state or a
    trajectory that another program made is refused while it is traced (`UsageError`).
    """

    init: Callable[..., LoopState]
    collect: Callable[[LoopState], tuple[Trajectory, LoopState]]
    learn: Callable[[LoopState, Trajectory], tuple[LoopState, LoopMetrics]]
    loop: Callable[[LoopState, int], tuple[LoopState, LoopMetrics]]


def own_loop(compiled_loop: Loop) -> OwnLoop:
    """Return the functions of a loop with one shard; nothing is compiled.

    Raises:
        UsageError: a user's algorithm has a metric with a name of `OF_EPISODES`.
    """
    learner, names = compiled_loop.learner, compiled_loop.learner.buffer.metrics
    if taken := [name for name in names if name in OF_EPISODES]:
        raise UsageError(
            f"the algorithm's metric {taken[0]!r} has a name that learn uses itself, with "
            f"{', '.join(OF_EPISODES)}: give it another one."
        )
    structure = jax.tree.structure(learner.shapes)

    def traced(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """Trace a function once, with the run's precision of matrix products."""

        @functools.wraps(function)
        def precise(*arguments: Any) -> Any:
            with matmul_precision(learner.device, learner.precision):
                return function(*arguments)

        return jax.jit(precise, **options)

    init = _initial(compiled_loop, jax.jit(compiled_loop.sampler.rollout.start))

    @functools.cache
    def state_shapes() -> LoopState:
        return jax.eval_shape(init, jax.ShapeDtypeStruct((2,), np.uint32))

    @functools.cache
    def trajectory_shapes() -> Trajectory:
        return jax.eval_shape(collect, state_shapes())[0]  # usually traced before

    def opened(state: LoopState) -> tuple[LoopState, RunState, jax.Array]:
        """Return a checked state, the part of it that changes, and packed hyper-parameters."""
        state = matching(state_shapes(), state, "state", OF_THIS_LOOP)
        leaves = jax.tree.leaves(state.learned)
        run = RunState(leaves, state.store, state.counts, state.environments)
        return state, run, learner.packed_hp(state.hp)

    @traced
    def collect(state: LoopState) -> tuple[Trajectory, LoopState]:
        """Collect the next trajectory, ``[T, N, ...]``, with the state's parameters."""
        state, run, hp = opened(state)
        trajectory, ends, run = compiled_loop.collect(run, state.keys.act, hp)
        return trajectory, state._replace(environments=run.environments, ends=ends)

    @traced
    def learn(state: LoopState, trajectory: Trajectory) -> tuple[LoopState, LoopMetrics]:
        """Make the updates that a trajectory pays for. Return metrics ``[]`` by name, also of the
        episodes that ended in the newest trajectory of `state`."""
        state, run, hp = opened(state)
        trajectory = matching(trajectory_shapes(), trajectory, "trajectory", AS_COLLECTED)
        keys = state.keys
        run, scalars = compiled_loop.learn(run, trajectory, keys.learn, keys.replay, hp)
        learned = jax.tree.unflatten(structure, run.learned)
        metrics = dict(zip(names, scalars, strict=False)) | _of_episodes(state.ends)
        metrics["healthy"] &= scalars[-1] > 0
        return state._replace(learned=learned, store=run.store, counts=run.counts), metrics

    @functools.partial(traced, static_argnums=1)
    def repeated(state: LoopState, n: int) -> tuple[LoopState, LoopMetrics]:
        def iteration(state: LoopState, _: None) -> tuple[LoopState, LoopMetrics]:
            trajectory, state = collect(state)
            return learn(state, trajectory)

        return jax.lax.scan(iteration, state, length=n)

    def loop(state: LoopState, n: int) -> tuple[LoopState, LoopMetrics]:
        """Collect and learn `n` times. Return metrics ``[n]`` by name."""
        if isinstance(n, Tracer) or not hasattr(n, "__index__") or operator.index(n) < 0:
            raise UsageError(
                "the n of loop(state, n) is a whole number that is known before compilation, such "
                f"as in jax.jit(lambda state: loop(state, 100)), not {n}."
            )
        return repeated(state, operator.index(n))

    return OwnLoop(init, collect, learn, loop)


def _initial(compiled_loop: Loop, start: Callable[..., RolloutState]) -> Callable[..., LoopState]:
    """Return `OwnLoop.init`."""
    learner, buffer = compiled_loop.learner, compiled_loop.learner.buffer
    algorithm = compiled_loop.sampler.rollout.algorithm
    streams = np.zeros((5, 2), np.uint32)

    def drawn(words: np.ndarray, hp: Any) -> tuple[np.ndarray, State]:
        """Draw the raw keys of all streams and the learning state, on the host as for any run."""
        seed = sum(int(word) << 32 * place for place, word in enumerate(words[::-1]))
        keys = [raw_key(seed, *stream) for stream in ((INIT,), (LEARN,), (REPLAY,), (ACT,))]
        return np.stack([*keys, raw_key(seed, ENVS, 0)]), algorithm.init(keys[0], hp)

    def drawn_for_all(words: Any, hp: Any) -> Any:
        """Draw for each member; the arguments may have axes of members in front."""
        words = np.asarray(words)
        members = words.shape[:-1]

        def each(leaf: Any, like: Any) -> np.ndarray:
            return np.asarray(leaf).reshape(-1, *like.shape)

        hps = jax.tree.map(each, hp, algorithm.hp)
        results = [
            drawn(own, jax.tree.map(lambda leaf: leaf[at], hps))  # noqa: B023
            for at, own in enumerate(words.reshape(-1, words.shape[-1]))
        ]
        return jax.tree.map(
            lambda *leaves: np.stack(leaves).reshape((*members, *np.shape(leaves[0]))), *results
        )

    def init(key: jax.Array, hp: Any = None) -> LoopState:
        """Return the state of a new run.

        Args:
            key: one typed or raw random key.
            hp: the hyper-parameters; by default those of the settings.
        """
        words = jax.random.key_data(key) if is_typed_key(key) else jnp.asarray(key)
        if words.ndim != 1 or words.dtype != np.uint32:
            raise UsageError(
                "init takes one random key, jax.random.key(seed) for example; for several keys "
                "call jax.vmap(init)(keys)."
            )
        if hp is None:
            # Otherwise XLA would compute with constants what a run computes with arguments.
            hp = jax.lax.optimization_barrier(jax.tree.map(jnp.asarray, algorithm.hp))
        hp = matching(algorithm.hp, hp, "hp", OF_THE_SETTINGS)
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((words, hp))):
            keys, learned = jax.pure_callback(
                drawn_for_all, (shapes_of(streams), learner.shapes), words, hp,
                vmap_method="broadcast_all",
            )  # fmt: skip
        else:
            keys, learned = jax.tree.map(jnp.asarray, drawn_for_all(words, hp))
        _, learn, replay, act, envs = keys
        replay = replay if np.size(buffer.key) else ()
        ends = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), compiled_loop.output.ends
        )
        store, counts = jax.tree.map(
            _constant, (buffer.store(), buffer.loop_counts(buffer.counts()))
        )
        environments = start(envs, np.int32(0))
        return LoopState(learned, store, counts, environments, Keys(learn, replay, act), hp, ends)

    return init


OF_THIS_LOOP = (
    "pass a state of the same make(...), and several states at once to jax.vmap(collect), "
    "jax.vmap(learn)."
)
OF_THE_SETTINGS = (
    "change hyper-parameters with state.hp._replace(...); a schedule is its start and its end, and "
    "a setting that is None there needs a value in make(...)."
)
AS_COLLECTED = "change what collect returned with trajectory._replace(...), and keep its shapes."


def matching(wanted: Any, given: Any, what: str, remedy: str) -> Any:
    """Return a tree whose leaves have the types of those of `wanted`, for example floats for whole
    numbers.

    Raises:
        UsageError: a leaf is missing, is one too many, or has another shape, or a type whose values
            that of `wanted` cannot hold.
    """
    names, found = (
        {
            f"{what}{jax.tree_util.keystr(path)}": leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        for tree in (wanted, given)
    )
    if jax.tree.structure(given) != jax.tree.structure(wanted):
        missing = next((name for name in names if name not in found), "")
        unknown = next((name for name in found if name not in names), "")
        fault = f"{missing} is missing" if missing else f"{unknown or what} has no place here"
        if type(given) is not type(wanted):
            fault = f"{what} is a {type(given).__name__}, not a {type(wanted).__name__}"
        raise UsageError(f"{fault}: {remedy}")

    def leaf_of(name: str, like: Any) -> Any:
        leaf, kind = found[name], jnp.result_type(found[name])
        fits = kind == like.dtype or jnp.promote_types(kind, like.dtype) == like.dtype
        if np.shape(leaf) != like.shape or not fits:
            raise UsageError(
                f"{name} is {kind}{list(np.shape(leaf))}, but this program needs "
                f"{like.dtype}{list(like.shape)}: {remedy}"
            )
        return leaf if kind == like.dtype else jnp.asarray(leaf, like.dtype)

    return jax.tree.unflatten(
        jax.tree.structure(wanted), [leaf_of(name, like) for name, like in names.items()]
    )


def _constant(array: Any) -> jax.Array:
    """Return an array; zeros, which a replay ring begins with, as no constant of a program."""
    array = np.asarray(array)
    return jnp.asarray(array) if array.any() else jnp.zeros(array.shape, array.dtype)


def _of_episodes(ends: Ends) -> LoopMetrics:
    """Return the metrics of the episodes that ended in a trajectory; means are NaN if none has."""
    ended = ends.length > 0
    count = ended.sum(dtype=jnp.int32)
    healthy = ends.finite.all() & (ends.early == 0).all()
    if ends.stuck is not None:
        healthy &= (ends.stuck[..., 0] < 0).all()
    some = jnp.where(count, count, jnp.nan)
    means = jnp.where(ended, ends.total, 0.0).sum() / some, ends.length.sum() / some
    return dict(zip(OF_EPISODES, (count, *means, healthy), strict=True))
