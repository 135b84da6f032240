"""The iteration as pure functions of one state, for training loops that users write.

`flatout.engine.make` returns them. They call `Loop.collect` and `Loop.learn`, as the fused schedule
does."""

from __future__ import annotations

import functools
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

Metrics = dict[str, jax.Array]


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
        collect: ``state -> trajectory, state``: the next T steps of N environments.
        learn: ``(state, trajectory) -> state, metrics``: the updates that a trajectory pays for.
        loop: ``(state, n) -> state, metrics``: `n` times both, with metrics ``[n]``; `n` is a
            Python int.
    """

    init: Callable[..., LoopState]
    collect: Callable[[LoopState], tuple[Trajectory, LoopState]]
    learn: Callable[[LoopState, Trajectory], tuple[LoopState, Metrics]]
    loop: Callable[[LoopState, int], tuple[LoopState, Metrics]]


def own_loop(compiled_loop: Loop) -> OwnLoop:
    """Return the functions of a loop with one shard; nothing is compiled."""
    learner, sampler = compiled_loop.learner, compiled_loop.sampler
    algorithm, names = sampler.rollout.algorithm, learner.buffer.metrics
    structure = jax.tree.structure(learner.shapes)

    def traced(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """Trace a function once, with the run's precision of matrix products."""

        @functools.wraps(function)
        def precise(*arguments: Any) -> Any:
            with matmul_precision(learner.device, learner.precision):
                return function(*arguments)

        return jax.jit(precise, **options)

    def run_state(state: LoopState) -> RunState:
        leaves = jax.tree.leaves(state.learned)
        return RunState(leaves, state.store, state.counts, state.environments)

    def packed_hp(state: LoopState) -> jax.Array:
        return learner.packed_hp(_like(algorithm.hp, state.hp))

    def collect(state: LoopState) -> tuple[Trajectory, LoopState]:
        """Collect the next trajectory."""
        trajectory, ends, run = compiled_loop.collect(
            run_state(state), state.keys.act, packed_hp(state)
        )
        return trajectory, state._replace(environments=run.environments, ends=ends)

    def learn(state: LoopState, trajectory: Trajectory) -> tuple[LoopState, Metrics]:
        """Learn from a trajectory."""
        keys = state.keys
        run, scalars = compiled_loop.learn(
            run_state(state), trajectory, keys.learn, keys.replay, packed_hp(state)
        )
        learned = jax.tree.unflatten(structure, run.learned)
        metrics = dict(zip(names, scalars, strict=False)) | _of_episodes(state.ends)
        metrics["healthy"] &= scalars[-1] > 0
        return state._replace(learned=learned, store=run.store, counts=run.counts), metrics

    def loop(state: LoopState, n: int) -> tuple[LoopState, Metrics]:
        """Collect and learn `n` times."""

        def iteration(state: LoopState, _: None) -> tuple[LoopState, Metrics]:
            trajectory, state = collect(state)
            return learn(state, trajectory)

        return jax.lax.scan(iteration, state, length=n)

    return OwnLoop(
        _initial(compiled_loop, jax.jit(sampler.rollout.start)), traced(collect), traced(learn),
        traced(loop, static_argnums=1),
    )  # fmt: skip


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
        """Return the state of a new run."""
        words = jax.random.key_data(key) if is_typed_key(key) else jnp.asarray(key)
        if words.ndim != 1 or words.dtype != np.uint32:
            raise UsageError(
                "init takes one random key, jax.random.key(seed) for example; for several keys "
                "call jax.vmap(init)(keys)."
            )
        hp = _like(algorithm.hp, algorithm.hp if hp is None else hp)
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


def _like(first: Any, hp: Any) -> Any:
    """Return hyper-parameters as arrays of the types of `first`.

    Raises:
        UsageError: they have other entries or shapes, so they belong to another program.
    """
    if jax.tree.structure(hp) != jax.tree.structure(first):
        raise UsageError(
            "hp has other entries than that of the settings: change it with state.hp._replace, and "
            "give a hyper-parameter that is None there a value in the settings."
        )

    def array(path: Any, like: Any, leaf: Any) -> jax.Array:
        if np.shape(leaf) != np.shape(like):
            name = jax.tree_util.keystr(path)
            raise UsageError(
                f"hp{name} has the shape {np.shape(leaf)}, but this program needs {np.shape(like)}."
            )
        return jnp.asarray(leaf, like.dtype)

    return jax.tree_util.tree_map_with_path(array, first, hp)


def _constant(array: Any) -> jax.Array:
    """Return an array; zeros, which a replay ring begins with, as no constant of a program."""
    array = np.asarray(array)
    return jnp.asarray(array) if array.any() else jnp.zeros(array.shape, array.dtype)


def _of_episodes(ends: Ends) -> Metrics:
    """Return the metrics of the episodes that ended in a trajectory; means are NaN if none has."""
    ended = ends.length > 0
    count = ended.sum(dtype=jnp.int32)
    healthy = ends.finite.all() & (ends.early == 0).all()
    if ends.stuck is not None:
        healthy &= (ends.stuck[..., 0] < 0).all()
    return {
        "episodes": count,
        "return_mean": jnp.where(ended, ends.total, 0.0).sum() / jnp.where(count, count, jnp.nan),
        "length_mean": ends.length.sum() / jnp.where(count, count, jnp.nan),
        "healthy": healthy,
    }
