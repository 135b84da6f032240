"""Algorithms that a user brings: from a name or a function to a checked `Algorithm`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import (
    Algorithm,
    BuildSpec,
    RolloutSpec,
    State,
    guarded,
    named_leaves,
    raw_key,
    trajectory_shapes,
    wrap_key,
)
from flatout.algorithms.parallel.packing import OutputLayout
from flatout.algorithms.parallel.shards import UNSHARDED
from flatout.config.hyper import HYPER
from flatout.config.modules import import_function
from flatout.config.schema import NetworkConfig
from flatout.envs.device.check import traced
from flatout.errors import UsageError, nearest, short
from flatout.types import Batch, ContinuousSpec, DiscreteSpec, ObservationSpec

MakeAlgorithm = Callable[[BuildSpec], Algorithm]


def own_algorithm(
    name: str, make: MakeAlgorithm | None, values: dict[str, Any], spec: BuildSpec
) -> Algorithm:
    """A user's algorithm, checked.

    Args:
        name: ``module:function``, or what to call `make`.
        make: the function; None imports the named one.
        values: hyper-parameters to change, by the names in the algorithm's `hp`.

    Raises:
        UsageError: it cannot be imported, or breaks the contract.
    """
    make = imported(name) if make is None else make
    algorithm = _made(name, make, values, spec)
    # One shard's functions are checked: those of several speak to each other.
    alone = replace(spec, shards=UNSHARDED)
    check(name, algorithm if spec.shards.count == 1 else _made(name, make, values, alone), alone)
    return algorithm


def hyper_parameters(name: str) -> str:
    """``NAME=VALUE ...`` of the hyper-parameters of ``module:function``, with their defaults, as
    made for small spaces; nothing where it needs others.

    Raises:
        UsageError: it cannot be imported.
    """
    make, values = imported(name), dict[str, Any]()
    for actions in (DiscreteSpec(2), ContinuousSpec((1,), (-1.0,), (1.0,))):
        with suppress(UsageError):
            small = ObservationSpec((4,), "float32")
            made = _made(name, make, {}, BuildSpec(NetworkConfig(), small, actions, 1, 1))
            values = values or _named(made.hp)
    texts = {key: np.array2string(value, separator=",") for key, value in values.items()}
    return " ".join(f"{key}={text}" for key, text in texts.items())


def _made(name: str, make: MakeAlgorithm, values: dict[str, Any], spec: BuildSpec) -> Algorithm:
    algorithm = guarded(name, "the function itself", make, spec)
    if not isinstance(algorithm, Algorithm):
        raise UsageError(
            f"{name} returned {type(algorithm).__name__}; it must return a flatout.Algorithm."
        )
    if algorithm.name in HYPER:
        raise UsageError(f"{name}: the name {algorithm.name!r} is taken; choose another.")
    return replace(algorithm, hp=_with(name, algorithm.hp, values))


def imported(name: str) -> MakeAlgorithm:
    """The function that ``module:function`` names.

    Raises:
        UsageError: there is none.
        EnvironmentFailure: importing its module fails.
    """
    return import_function(name, f"the algorithm {name}")


def _named(hp: Any) -> dict[str, Any]:
    return hp._asdict() if hasattr(hp, "_asdict") else hp if isinstance(hp, dict) else {}


def _with(name: str, hp: Any, values: dict[str, Any]) -> Any:
    """The hyper-parameters with some changed."""
    named = _named(hp)
    changes: dict[str, np.ndarray] = {}
    for key, value in values.items():
        if key not in named:
            there = f"there is {', '.join(named)}" if named else "it names none in Algorithm.hp"
            raise UsageError(
                f"{name} has no hyper-parameter {key!r}; {there}.{nearest(key, list(named))}"
            )
        changes[key] = _number(key, value, np.shape(named[key]))
    if changes:
        hp = {**hp, **changes} if isinstance(hp, dict) else hp._replace(**changes)

    def floats(hp: Any) -> Any:
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), hp)

    return guarded(name, "hp", floats, hp)


def _number(key: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A hyper-parameter's new value, of the shape of its old one."""
    try:
        with np.errstate(over="ignore"):  # to infinity
            array = np.asarray(value, np.float32)
    except (TypeError, ValueError):
        array = np.asarray(np.nan, np.float32)
    if np.isinf(array).any():
        raise UsageError(f"--hp {key}={short(value)} is impossible: float32 cannot hold it.")
    if array.shape != shape or np.isnan(array).any():
        what = f"a list of numbers of shape {list(shape)}" if shape else "a number"
        raise UsageError(f"--hp {key}={short(value)}: {key} is {what}.")
    return array


# --- The contract -----------------------------------------------------------------------------


def check(name: str, algorithm: Algorithm, spec: BuildSpec) -> None:
    """Refuse an algorithm that breaks the contract, by shapes alone: nothing is computed.

    Raises:
        UsageError: which function of it, and which leaf.
    """
    state, hp = algorithm.shapes, algorithm.hp
    if not isinstance(state, State):
        raise UsageError(
            f"{name}: init returns {type(state).__name__}; it must return a flatout.State of "
            "params, opt and counters."
        )
    if not hasattr(state.counters, "step"):
        raise UsageError(f"{name}: init's counters have no step; flatout.Counters has.")
    for path, leaf in named_leaves(state):
        if leaf.dtype.itemsize > 4:
            raise UsageError(
                f"{name}: init returns {path} as {_words(leaf)}; a state's numbers have 32 bits "
                "at most."
            )
    obs = jax.ShapeDtypeStruct((spec.num_envs, *spec.obs_spec.shape), spec.obs_spec.dtype)
    params = guarded(name, "actor", jax.eval_shape, algorithm.actor, state, hp)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.dtype.itemsize > 4:
            raise UsageError(
                f"{name}: actor returns params{jax.tree_util.keystr(path)} as {_words(leaf)}; what "
                "acting needs are floats of 32 bits at most."
            )
    key = wrap_key(raw_key(0))
    zero = np.int32(0)
    noise = guarded(name, "noise", jax.eval_shape, algorithm.noise, key, zero, zero)
    noise = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((spec.num_envs, *leaf.shape), leaf.dtype), noise
    )

    def act(params: Any, obs: Any, noise: Any) -> Any:
        return algorithm.act(params, obs, (), noise)

    (one, kept), (other, _) = (
        guarded(name, "act", traced, act, params, obs, noise) for _ in range(2)
    )
    if kept:
        raise UsageError(
            f"{name}: act keeps what it is given beyond the call, in a list or an attribute for "
            "example. Keep state in the algorithm's state."
        )
    if one != other:
        raise UsageError(
            f"{name}: act is not pure: traced twice, it gave two programs. Draw what it needs in "
            "noise, and keep state in the algorithm's state."
        )
    acted = guarded(name, "act", jax.eval_shape, act, params, obs, noise)
    if not isinstance(acted, tuple) or len(acted) != 3 or not isinstance(acted[2], dict):
        raise UsageError(f"{name}: act must return (action, carry, extras by name).")
    action, _, extras = acted
    shape, dtype = (spec.num_envs,), np.dtype(np.int32)
    if isinstance(spec.action_spec, ContinuousSpec):
        shape, dtype = (spec.num_envs, spec.action_spec.size), np.dtype(np.float32)
    if (getattr(action, "shape", None), getattr(action, "dtype", None)) != (shape, dtype):
        raise UsageError(
            f"{name}: act gives actions {_words(action)}; this environment takes "
            f"{dtype}{list(shape)}."
        )
    for extra_name, extra in extras.items():
        shape = getattr(extra, "shape", ())
        if shape[:1] != (spec.num_envs,) or extra.dtype.itemsize != 4:
            raise UsageError(
                f"{name}: act's extra {extra_name!r} is {_words(extra)}; it must have "
                f"{spec.num_envs} rows (one per environment) of 32 bits."
            )
    if algorithm.replay is not None:
        _check_replay(name, algorithm)
    data = _data(algorithm, spec, action, extras)
    after = guarded(name, "update", jax.eval_shape, algorithm.update, state, data, key, hp)
    _check_update(name, algorithm, after)


def _check_replay(name: str, algorithm: Algorithm) -> None:
    """Refuse what lacks something that replay asks for."""
    assert algorithm.replay is not None
    shapes = {"gamma": ()}
    if algorithm.replay.prioritized:
        shapes |= {"priority_alpha": (), "priority_beta": (2,)}
    for key, shape in shapes.items():
        value = getattr(algorithm.hp, key, None)
        if getattr(value, "shape", None) != shape:
            raise UsageError(
                f"{name}: replay needs hp.{key}, float32{list(shape)}, in a named tuple hp."
            )
    if algorithm.advance is None or not algorithm.metrics:
        raise UsageError(f"{name}: replay needs Algorithm.advance, and a metric at least.")
    state, zero = algorithm.shapes, np.int32(0)
    after = guarded(name, "advance", jax.eval_shape, algorithm.advance, state, zero, algorithm.hp)
    if not isinstance(after, tuple) or len(after) != 2 or not isinstance(after[1], dict):
        raise UsageError(f"{name}: advance must return (state, scalars by name).")
    _same(name, "advance", state, after[0])
    for scalar in algorithm.advanced:
        if getattr(after[1].get(scalar), "shape", None) != ():
            raise UsageError(f"{name}: advance returns no scalar {scalar!r}.")


def _check_update(name: str, algorithm: Algorithm, after: Any) -> None:
    if not isinstance(after, tuple) or len(after) != 3 or not isinstance(after[1], dict):
        raise UsageError(
            f"{name}: update must return (state, metrics by name, priorities or None)."
        )
    state, metrics, errors = after
    _same(name, "update", algorithm.shapes, state)
    replay = algorithm.replay
    if replay is not None and getattr(errors, "shape", None) != (replay.batch_size,):
        raise UsageError(
            f"{name}: update's third value is {_words(errors)}; with replay it must be the size of "
            f"each row's error, float32[{replay.batch_size}]."
        )
    expected = set(algorithm.metrics) | (set() if algorithm.replay is not None else {"updates"})
    missing = sorted(expected - set(metrics)) + sorted(expected - set(algorithm.metrics))
    if missing:
        raise UsageError(
            f"{name}: the metric {missing[0]!r} must be in both Algorithm.metrics and what update "
            f"returns ({', '.join(metrics)})."
        )
    for metric in algorithm.metrics:
        if metrics[metric].shape != ():
            raise UsageError(
                f"{name}: update's metric {metric!r} is {_words(metrics[metric])}; it must be a "
                "scalar, its mean for example."
            )


def _same(name: str, function: str, before: Any, after: Any) -> None:
    """Refuse a state of another structure, shape or dtype than `init`'s."""
    kept, changed = dict(named_leaves(before)), dict(named_leaves(after))
    for path in [*kept, *changed]:
        old, new = kept.get(path), changed.get(path)
        if old is None or new is None:
            where = "init made none" if old is None else f"init made {_words(old)}"
            what = f"a leaf {path}" if old is None else f"no leaf {path}"
            raise UsageError(f"{name}: {function} returns {what}, and {where}.")
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise UsageError(
                f"{name}: {function} returns {path} as {_words(new)}, and init made {_words(old)}; "
                "a state keeps its shapes."
            )


def _data(algorithm: Algorithm, spec: BuildSpec, action: Any, extras: dict[str, Any]) -> Any:
    """The shapes of what `update` is given."""
    if algorithm.replay is None:
        rollout = RolloutSpec(algorithm.horizon, algorithm.episodes, 1, False)
        layout = OutputLayout({"action": action, **extras})
        return trajectory_shapes(rollout, spec.num_envs, spec.obs_spec, layout)
    rows, obs = algorithm.replay.batch_size, spec.obs_spec
    one = jax.ShapeDtypeStruct((rows,), np.float32)
    seen = jax.ShapeDtypeStruct((rows, *obs.shape), np.dtype(obs.dtype))
    actions = jax.ShapeDtypeStruct((rows, *action.shape[1:]), action.dtype)
    return Batch(seen, actions, one, seen, one, one)


def _words(leaf: Any) -> str:
    if not hasattr(leaf, "shape"):
        return "None" if leaf is None else f"no array but {type(leaf).__name__}"
    return f"{leaf.dtype}{list(leaf.shape)}"
