"""Users' algorithms: they are imported, built and checked here, for
`flatout.algorithms.registry`."""

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
    spec_shapes,
    trajectory_shapes,
)
from flatout.algorithms.shards import UNSHARDED
from flatout.config.hyper import HYPER
from flatout.config.modules import import_function
from flatout.config.schema import NetworkConfig
from flatout.errors import UsageError, nearest, short
from flatout.packing import OutputLayout
from flatout.purity import traced
from flatout.randomness import raw_key, wrap_key
from flatout.types import Batch, ContinuousSpec, DiscreteSpec, ObservationSpec

MakeAlgorithm = Callable[[BuildSpec], Algorithm]


def own_algorithm(
    name: str, make: MakeAlgorithm | None, values: dict[str, Any], spec: BuildSpec
) -> Algorithm:
    """Build a user's algorithm and check it.

    Args:
        name: ``module:function``, or the name of `make` for messages.
        make: the function; None imports the named one.
        values: hyper-parameters to change, by the names in the algorithm's `hp`.

    Raises:
        UsageError: the function cannot be imported, or the algorithm breaks the contract.
    """
    make = imported(name) if make is None else make
    algorithm = _build(name, make, values, spec)
    # Checked as one shard: several shards exchange values, which works only in a sharded program.
    alone = replace(spec, shards=UNSHARDED)
    check(name, algorithm if spec.shards.count == 1 else _build(name, make, values, alone), alone)
    return algorithm


def hyper_parameters(name: str) -> str:
    """Return ``NAME=VALUE ...``, the hyper-parameters of ``module:function`` and their defaults.

    The algorithm is built for small spaces. The text is empty if it needs other spaces.

    Raises:
        UsageError: the function cannot be imported.
    """
    make, values = imported(name), dict[str, Any]()
    for actions in (DiscreteSpec(2), ContinuousSpec((1,), (-1.0,), (1.0,))):
        with suppress(UsageError):
            small = ObservationSpec((4,), "float32")
            algorithm = _build(name, make, {}, BuildSpec(NetworkConfig(), small, actions, 1, 1))
            values = values or _by_name(algorithm.hp)
    texts = {key: np.array2string(value, separator=",") for key, value in values.items()}
    return " ".join(f"{key}={text}" for key, text in texts.items())


def _build(name: str, make: MakeAlgorithm, values: dict[str, Any], spec: BuildSpec) -> Algorithm:
    algorithm = guarded(name, "the function itself", make, spec)
    if not isinstance(algorithm, Algorithm):
        raise UsageError(
            f"{name} returned {type(algorithm).__name__}; it must return a flatout.Algorithm."
        )
    if algorithm.name in HYPER:
        raise UsageError(f"{name}: the name {algorithm.name!r} is taken; choose another.")
    return replace(algorithm, hp=_change(name, algorithm.hp, values))


def imported(name: str) -> MakeAlgorithm:
    """Import the function that ``module:function`` names.

    Raises:
        UsageError: there is no such function.
        EnvironmentFailure: importing its module fails.
    """
    return import_function(name, f"the algorithm {name}")


def _by_name(hp: Any) -> dict[str, Any]:
    return hp._asdict() if hasattr(hp, "_asdict") else hp if isinstance(hp, dict) else {}


def _change(name: str, hp: Any, values: dict[str, Any]) -> Any:
    """Return the hyper-parameters with some values changed, all as float32.

    Raises:
        UsageError: a name or a value is wrong.
    """
    named = _by_name(hp)
    changes: dict[str, np.ndarray] = {}
    for key, value in values.items():
        if key not in named:
            there = f"it has {', '.join(named)}" if named else "it names none in Algorithm.hp"
            raise UsageError(
                f"{name} has no hyper-parameter {key!r}; {there}.{nearest(key, list(named))}"
            )
        changes[key] = _parse(key, value, np.shape(named[key]))
    if changes:
        hp = {**hp, **changes} if isinstance(hp, dict) else hp._replace(**changes)

    def floats(hp: Any) -> Any:
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), hp)

    return guarded(name, "hp", floats, hp)


def _parse(key: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return a hyper-parameter's new value, in the shape of its old one."""
    try:
        with np.errstate(over="ignore"):  # too large becomes infinity
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
    """Refuse an algorithm that breaks the contract. Only shapes are checked: nothing is computed.

    Raises:
        UsageError: it breaks the contract; the message names the function and the leaf.
    """
    state, hp = algorithm.shapes, algorithm.hp
    _check_counts(name, algorithm)
    if not isinstance(state, State):
        raise UsageError(
            f"{name}: init returns {type(state).__name__}; it must return a flatout.State of "
            "params, opt and counters."
        )
    if not hasattr(state.counters, "step"):
        raise UsageError(
            f"{name}: init's counters have no step; use flatout.Counters, which has one."
        )
    for path, leaf in named_leaves(state):
        if leaf.dtype.itemsize > 4:
            raise UsageError(
                f"{name}: init returns {path} as {_describe(leaf)}; a state's numbers must have "
                "at most 32 bits."
            )
    obs = spec_shapes(spec.obs_spec, spec.num_envs)
    params = guarded(name, "actor", jax.eval_shape, algorithm.actor, state, hp)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.dtype.itemsize > 4:
            raise UsageError(
                f"{name}: actor returns params{jax.tree_util.keystr(path)} as {_describe(leaf)}; "
                "it must return floats of at most 32 bits."
            )
    key = wrap_key(raw_key(0))
    zero = np.int32(0)
    noise = guarded(name, "noise", jax.eval_shape, algorithm.noise, key, zero, zero)
    noise = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((spec.num_envs, *leaf.shape), leaf.dtype), noise
    )

    carry = guarded(name, "initial_carry", algorithm.carry_shapes, spec.num_envs)

    def act(params: Any, obs: Any, noise: Any) -> Any:
        return algorithm.act(params, obs, jax.tree.map(jnp.zeros_like, carry), noise)

    (one, kept), (other, _) = (
        guarded(name, "act", traced, act, params, obs, noise) for _ in range(2)
    )
    if kept:
        raise UsageError(
            f"{name}: act keeps what it is given beyond the call (in a list or an attribute, for "
            "example). Keep state in the algorithm's state."
        )
    if one != other:
        raise UsageError(
            f"{name}: act is not pure: traced twice, it gave two programs. Draw what it needs in "
            "noise, and keep state in the algorithm's state."
        )
    acted = guarded(name, "act", jax.eval_shape, act, params, obs, noise)
    if not isinstance(acted, tuple) or len(acted) != 3 or not isinstance(acted[2], dict):
        raise UsageError(f"{name}: act must return (action, carry, extras by name).")
    action, after, extras = acted
    _check_carry(name, spec.num_envs, carry, after)
    if algorithm.recurrent and algorithm.replay is not None:
        raise UsageError(
            f"{name}: an algorithm with a carry cannot use replay, which stores no carry; set "
            "Algorithm.replay = None, or initial_carry to its default."
        )
    space = spec.action_spec
    shape, dtype = (spec.num_envs, *space.choice_shape), np.dtype(space.choice_dtype)
    if (getattr(action, "shape", None), getattr(action, "dtype", None)) != (shape, dtype):
        raise UsageError(
            f"{name}: act gives actions {_describe(action)}; this environment takes "
            f"{dtype}{list(shape)}."
        )
    if "action" in extras:
        raise UsageError(
            f"{name}: act's extra 'action' has the name under which its actions are stored; choose "
            "another name."
        )
    for extra_name, extra in extras.items():
        shape = getattr(extra, "shape", ())
        if shape[:1] != (spec.num_envs,) or extra.dtype.itemsize != 4:
            raise UsageError(
                f"{name}: act's extra {extra_name!r} is {_describe(extra)}; it must have "
                f"{spec.num_envs} rows (one per environment), with values of 32 bits."
            )
    if algorithm.replay is not None:
        _check_replay(name, algorithm)
    data = _update_data(algorithm, spec, action, extras)
    after = guarded(name, "update", jax.eval_shape, algorithm.update, state, data, key, hp)
    _check_update(name, algorithm, after)


def _check_counts(name: str, algorithm: Algorithm) -> None:
    """Refuse trajectories or replay of no steps."""
    counts: dict[str, Any] = {"Algorithm.horizon": algorithm.horizon}
    if algorithm.episodes is not None:
        counts["Algorithm.episodes"] = algorithm.episodes
    if algorithm.replay is not None:
        fields = ("batch_size", "train_freq", "gradient_steps", "buffer_size", "n_step")
        counts |= {f"ReplaySpec.{field}": getattr(algorithm.replay, field) for field in fields}
    for what, count in counts.items():
        if not isinstance(count, int | np.integer) or count < 1:
            raise UsageError(f"{name}: {what} is {count!r}; it must be a whole number, at least 1.")


def _check_carry(name: str, num_envs: int, before: Any, after: Any) -> None:
    """Refuse a carry that is not one array per environment, or that changes its form in `act`."""
    old, new = (
        {
            jax.tree_util.keystr(path): leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(carry)
        }
        for carry in (before, after)
    )
    for path, leaf in old.items():
        if leaf.shape[:1] != (num_envs,):
            raise UsageError(
                f"{name}: initial_carry returns carry{path} as {_describe(leaf)}; it must have "
                f"{num_envs} rows for {num_envs} environments."
            )
    for path in [*old, *new]:
        one, other = old.get(path), new.get(path)
        if one is None or other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
            raise UsageError(
                f"{name}: act returns carry{path} as {_describe(other)}, and initial_carry made "
                f"{_describe(one)}; a carry must keep its form."
            )


def _check_replay(name: str, algorithm: Algorithm) -> None:
    """Refuse an algorithm that lacks something that replay needs."""
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
        raise UsageError(f"{name}: replay needs Algorithm.advance and at least one metric.")
    state, zero = algorithm.shapes, np.int32(0)
    after = guarded(name, "advance", jax.eval_shape, algorithm.advance, state, zero, algorithm.hp)
    if not isinstance(after, tuple) or len(after) != 2 or not isinstance(after[1], dict):
        raise UsageError(f"{name}: advance must return (state, scalars by name).")
    _check_same(name, "advance", state, after[0])
    for scalar in algorithm.advanced:
        if getattr(after[1].get(scalar), "shape", None) != ():
            raise UsageError(f"{name}: advance returns no scalar {scalar!r}.")


def _check_update(name: str, algorithm: Algorithm, after: Any) -> None:
    if not isinstance(after, tuple) or len(after) != 3 or not isinstance(after[1], dict):
        raise UsageError(
            f"{name}: update must return (state, metrics by name, priorities or None)."
        )
    state, metrics, errors = after
    _check_same(name, "update", algorithm.shapes, state)
    replay = algorithm.replay
    if replay is not None and getattr(errors, "shape", None) != (replay.batch_size,):
        raise UsageError(
            f"{name}: update's third value is {_describe(errors)}; with replay it must be each "
            f"row's absolute error, float32[{replay.batch_size}]."
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
                f"{name}: update's metric {metric!r} is {_describe(metrics[metric])}; it must be a "
                "scalar, its mean for example."
            )


def _check_same(name: str, function: str, before: Any, after: Any) -> None:
    """Refuse a state whose structure, shapes or dtypes differ from `init`'s."""
    kept, changed = dict(named_leaves(before)), dict(named_leaves(after))
    for path in [*kept, *changed]:
        old, new = kept.get(path), changed.get(path)
        if old is None or new is None:
            where = "init made none" if old is None else f"init made {_describe(old)}"
            what = f"a leaf {path}" if old is None else f"no leaf {path}"
            raise UsageError(f"{name}: {function} returns {what}, and {where}.")
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise UsageError(
                f"{name}: {function} returns {path} as {_describe(new)}, and init made "
                f"{_describe(old)}; a state must keep its shapes and dtypes."
            )


def _update_data(algorithm: Algorithm, spec: BuildSpec, action: Any, extras: dict[str, Any]) -> Any:
    """Return the shapes of `update`'s data: a trajectory, or with replay a batch."""
    if algorithm.replay is None:
        rollout = RolloutSpec(algorithm.horizon, algorithm.episodes, 1, False)
        layout = OutputLayout({"action": action, **extras})
        carry = algorithm.carry_shapes(spec.num_envs)
        return trajectory_shapes(rollout, spec.num_envs, spec.obs_spec, layout, carry)
    rows = algorithm.replay.batch_size
    one = jax.ShapeDtypeStruct((rows,), np.float32)
    seen = spec_shapes(spec.obs_spec, rows)
    actions = jax.ShapeDtypeStruct((rows, *action.shape[1:]), action.dtype)
    return Batch(seen, actions, one, seen, one, one)


def _describe(leaf: Any) -> str:
    if not hasattr(leaf, "shape"):
        return "None" if leaf is None else f"not an array but {type(leaf).__name__}"
    return f"{leaf.dtype}{list(leaf.shape)}"
