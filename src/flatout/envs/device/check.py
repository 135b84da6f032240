"""Check that an environment keeps the contract of `DeviceEnv`: one sentence for each breach. It is
called when an environment is made, and by users' tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flatout import tree
from flatout.actions import allowed
from flatout.envs.device.base import DeviceEnv, action_shape, reset_key, select, step_key
from flatout.envs.masks import masked_device
from flatout.errors import UsageError, one_line
from flatout.purity import traced
from flatout.randomness import raw
from flatout.types import ActionSpec, Array, Obs, ObservationSpec, ObsSpec, mask_path

COPIES = 16
"""Number of environments that `check_device_env` steps together."""


def refuse(env: DeviceEnv) -> None:
    """Refuse an environment in which `shape_problems` finds a problem.

    Raises:
        UsageError: the message is the first problem.
    """
    for problem in shape_problems(env):
        raise UsageError(problem)


def check_device_env(env: DeviceEnv, steps: int = 2000, seed: int = 0) -> list[str]:
    """Check an environment, usually in a test, and return its problems: an empty list if none.

    It stops at the first of three checks that finds a problem. First, `shape_problems`. Second,
    `reset` and `step` are traced twice and called twice with the same arguments, which must give
    the same program and the same numbers: that finds draws from NumPy or the clock, counters in
    Python, and traced values that outlive the call, but no calls of `print`. Third, 16
    copies are compiled, mapped and stepped with random actions.

    Args:
        env: the environment.
        steps: random steps of each copy. Without `limit`, at least one episode must end in them.
        seed: the seed of actions and episodes.
    """
    problems = list(shape_problems(env)) or list(_purity_problems(env))
    return problems or list(_play_problems(env, steps, seed))


def shape_problems(env: DeviceEnv) -> Iterator[str]:
    """Yield problems that shapes and dtypes alone show. Nothing is computed on a device."""
    name = env.name
    spec, action = env.obs_spec, env.action_spec
    if problem := next(_spec_problems(name, spec), ""):
        yield problem
        return
    if not isinstance(action, ActionSpec):
        yield (
            f"{name}: action_spec must be a DiscreteSpec, a ContinuousSpec, or a spec of "
            "flatout.actions."
        )
        return
    for field, value in (("limit", env.limit), ("patience", env.patience)):
        if value is not None and not (type(value) is int and value >= 1):
            yield f"{name}: {field} = {value!r} must be a number of steps, or None."
            return
    key = jax.eval_shape(reset_key, jax.ShapeDtypeStruct((), np.uint32))
    began, why = _try(jax.eval_shape, env.reset, key)
    if why:
        yield f"{name}: reset cannot be compiled: {why}"
        return
    if not isinstance(began, tuple) or len(began) != 2:
        yield f"{name}: reset must return (state, obs)."
        return
    state, obs = began
    yield from _obs_problems(f"{name}: reset returns obs", obs, spec)
    given = action_shape(env)
    stepped, why = _try(jax.eval_shape, env.step, state, given, key)
    if why:
        yield f"{name}: step cannot be compiled: {why}"
        return
    if not isinstance(stepped, tuple) or len(stepped) != 5:
        yield f"{name}: step must return (state, obs, reward, terminated, truncated)."
        return
    yield from _state_problems(name, state, stepped[0])
    _, obs, reward, *flags = stepped
    yield from _obs_problems(f"{name}: step returns obs", obs, spec)
    must = "it must be"
    yield from _mismatch(f"{name}: step returns reward", reward, (), "float32", must)
    for flag, value in zip(("terminated", "truncated"), flags, strict=True):
        yield from _mismatch(f"{name}: step returns {flag}", value, (), "bool", must)
    yield from _info_problems(env, state)
    many = jax.tree.map(_batch_shape, (state, given, key))
    _, why = _try(jax.eval_shape, jax.vmap(env.step), *many)
    if why:
        yield f"{name}: step cannot be mapped over many environments (jax.vmap): {why}"


def _spec_problems(name: str, spec: Any) -> Iterator[str]:
    """Yield problems of `obs_spec` itself."""
    if isinstance(spec, dict) and not spec:
        yield f"{name}: obs_spec is an empty dict; it needs an entry."
    for path, leaf in tree.items(spec):
        of = f"[{path!r}]" if isinstance(spec, dict) else ""
        if isinstance(spec, dict) and not tree.is_key(path):
            yield (
                f"{name}: obs_spec has the key {path!r}; keys are texts without slashes, in valid "
                "Unicode."
            )
        elif not isinstance(leaf, ObservationSpec) or 0 in leaf.shape:
            yield (
                f"{name}: obs_spec{of} must be an ObservationSpec of an array that is not empty, "
                "for example a vector [D] or an image [H, W, C], or a dict of them."
            )
        elif leaf.high is not None and not leaf.high > 0:
            yield (
                f"{name}: obs_spec{of}.high = {leaf.high} must be above 0 or None: networks divide "
                "by it."
            )


def _obs_problems(what: str, obs: Any, spec: ObsSpec) -> Iterator[str]:
    """Yield differences between observations and their spec."""
    if not isinstance(spec, dict):
        yield from _mismatch(what, obs, spec.shape, spec.dtype, "obs_spec says")
    elif not isinstance(obs, dict) or obs.keys() != spec.keys():
        given = f"a dict of {', '.join(map(str, obs))}" if isinstance(obs, dict) else _describe(obs)
        yield f"{what} as {given}; obs_spec has {', '.join(spec)}."
    else:
        for path, leaf in spec.items():
            says = "obs_spec says"
            yield from _mismatch(f"{what}[{path!r}]", obs[path], leaf.shape, leaf.dtype, says)


def _info_problems(env: DeviceEnv, state: Any) -> Iterator[str]:
    """Yield problems of the values that `info` returns."""
    info, why = ({}, "") if env.info is None else _try(jax.eval_shape, env.info, state)
    if why:
        yield f"{env.name}: info cannot be compiled: {why}"
    elif not isinstance(info, dict) or not all(isinstance(name, str) for name in info):
        yield f"{env.name}: info must return a dict of scalars by name."
    else:
        for name, leaf in info.items():
            if getattr(leaf, "shape", None) != () or np.dtype(leaf.dtype).kind not in "biuf":
                yield f"{env.name}: info returns {name} as {_describe(leaf)}; it must be a scalar."


def random_actions(env: DeviceEnv, key: Array, count: int) -> Array:
    """Draw actions ``[count, ...]`` uniformly from the space (`ActionSpec.from_uniform`)."""
    spec = env.action_spec
    draws = jax.random.uniform(key, (count, math.prod(spec.choice_shape)), jnp.float32)
    return spec.from_uniform(jnp, draws)


def _purity_problems(env: DeviceEnv) -> Iterator[str]:
    key = jax.jit(reset_key)(np.uint32(1))
    started, problem = _call_twice(env, "reset", env.reset, key)
    if not problem:
        _, problem = _call_twice(env, "step", env.step, started[0], *_first_step(env, key))
    if problem:
        yield problem


def _call_twice(
    env: DeviceEnv, name: str, function: Callable[..., Any], *given: Any
) -> tuple[Any, str]:
    """Trace and call a function twice; return its result, and the problem or an empty string."""
    traces, why = _try(lambda: [traced(function, *given) for _ in range(2)])
    if why and "UnexpectedTracerError" not in why:
        return None, f"{env.name}: {name} failed: {why}"
    if why or traces[0][1]:
        return None, (
            f"{env.name}: {name} keeps what it is given beyond the call, in a list or an attribute "
            "for example. Put all that changes into the state."
        )
    if traces[0] != traces[1]:
        return None, (
            f"{env.name}: {name} is not pure: traced twice, it gave two programs. Draw from its "
            "key, and put all that changes into the state."
        )
    run = jax.jit(lambda *given: function(*given))
    results, why = _try(lambda: [jax.block_until_ready(run(*given)) for _ in range(2)])
    if why:
        return None, f"{env.name}: {name} failed: {why}"
    if not _bits_equal(*results):
        return None, f"{env.name}: {name} is not pure: the same arguments gave different numbers."
    return results[0], ""


def _first_step(env: DeviceEnv, key: Array) -> tuple[Array, Array]:
    """Return a random action, and the key of the first step of an episode with seed 1."""

    def draw(key: Array) -> tuple[Array, Array]:
        return random_actions(env, key, 1)[0], step_key(jnp.uint32(1), jnp.int32(0))

    return jax.jit(draw)(key)


def _play_problems(env: DeviceEnv, steps: int, seed: int) -> Iterator[str]:
    seeds = np.arange(COPIES, dtype=np.uint32) + np.uint32(seed)
    path = mask_path(masked_device(env).obs_spec)
    highest = [leaf.high for leaf in tree.leaves(env.obs_spec)]

    def good(obs: Obs, reward: Array) -> Array:
        numbers = jnp.isfinite(reward).all()
        for path, spec in tree.items(env.obs_spec):
            leaf, high = obs[path] if path else obs, spec.high
            numbers &= jnp.isfinite(leaf.astype(jnp.float32)).all()
            numbers &= True if high is None else (leaf <= high).all()
        return numbers

    def step(carry: Any, t: Array) -> tuple[Any, Array]:
        state, mask, length, ends, bad, early = carry
        actions = random_actions(env, jax.random.fold_in(jax.random.key(seed), t), COPIES)
        if path:
            actions = allowed(jnp, env.action_spec, mask, actions)
        keys = jax.vmap(step_key, (0, None))(seeds, t)
        state, obs, reward, terminated, truncated = jax.vmap(env.step)(state, actions, keys)
        over: Array = terminated | truncated
        length += 1
        if env.patience is not None:
            cut = truncated & ~terminated & (length < env.patience)
            early = jnp.maximum(early, jnp.where(cut, length, 0))
        if env.limit is not None:
            over |= length >= env.limit
        keys = jax.vmap(reset_key)(seeds + COPIES * (t + 1).astype(jnp.uint32))
        bad = jnp.where((bad < 0) & ~good(obs, reward), t, bad)
        fresh = jax.vmap(env.reset)(keys)
        state, obs = jax.tree.map(lambda new, old: select(over, new, old), fresh, (state, obs))
        length = jnp.where(over, 0, length)
        return (state, obs[path] if path else (), length, ends + over.sum(), bad, early), reward

    def play(seeds: Array) -> tuple[Array, Array, Array]:
        state, obs = jax.vmap(env.reset)(jax.vmap(reset_key)(seeds))
        bad = jnp.where(good(obs, jnp.zeros(())), -1, 0)
        none = jnp.zeros(COPIES, jnp.int32)
        carry = state, obs[path] if path else (), none, jnp.int32(0), bad, none
        (*_, ends, bad, early), _ = jax.lax.scan(step, carry, jnp.arange(steps))
        return ends, bad, early.max()

    result, why = _try(lambda: [int(x) for x in jax.jit(play)(seeds)])
    if why:
        yield f"{env.name}: it cannot be compiled and mapped over many environments: {why}"
        return
    ends, bad, early = result
    if bad >= 0:
        limits = sorted({high for high in highest if high is not None})
        above = f", or an observation above obs_spec.high ({limits[0]})" if limits else ""
        yield f"{env.name}: step {bad} of random play gave NaN or infinity{above}."
    if early:
        yield too_early(env, early)
    if not ends and env.limit is None:
        yield (
            f"{env.name}: no episode of {COPIES} ended within {steps:,} random steps; set limit, "
            "the steps after which an episode is truncated."
        )


def too_early(env: DeviceEnv, length: int) -> str:
    """Return the message about an episode that was truncated before `env.patience` steps."""
    return (
        f"{env.name}: step truncated an episode after {length} steps, but DeviceEnv.patience is "
        f"{env.patience}: final observations would be lost. Set patience to the least number of "
        "steps after which the rules truncate an episode, or to None."
    )


def _try(function: Callable[..., Any], *given: Any) -> tuple[Any, str]:
    """Call a function; return its result and an empty string, or None and why it failed."""
    try:
        return function(*given), ""
    except Exception as error:  # a user's function may raise anything
        text = one_line(error)
        text = text if len(text) <= 300 else text[:297] + "..."
        return None, f"{type(error).__name__}: {text.rstrip('.')}."


def _bits_equal(one: Any, other: Any) -> bool:
    """Return whether all arrays of two pytrees are equal to the bit."""
    return all(
        np.asarray(raw(a)).tobytes() == np.asarray(raw(b)).tobytes()
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def _batch_shape(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct((8, *leaf.shape), leaf.dtype)


def _mismatch(what: str, leaf: Any, shape: tuple[int, ...], dtype: str, rule: str) -> Iterator[str]:
    if (getattr(leaf, "shape", None), str(getattr(leaf, "dtype", ""))) != (shape, dtype):
        yield f"{what} as {_describe(leaf)}; {rule} {dtype}{list(shape)}."


def _state_problems(name: str, before: Any, after: Any) -> Iterator[str]:
    old, new = (
        {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(s)}
        for s in (before, after)
    )
    if jax.tree.structure(before) != jax.tree.structure(after):
        odd = next(iter(sorted(old.keys() ^ new.keys())), "")
        where = f" (state{odd})" if odd else ""
        yield f"{name}: step returns a state of another structure than reset{where}."
        return
    for path, leaf in old.items():
        if (leaf.shape, leaf.dtype) != (new[path].shape, new[path].dtype):
            yield (
                f"{name}: step returns state{path} as {_describe(new[path])}, and reset as "
                f"{_describe(leaf)}; a state keeps its shapes and dtypes."
            )


def _describe(leaf: Any) -> str:
    if not hasattr(leaf, "shape"):
        return type(leaf).__name__
    return f"{leaf.dtype}{list(leaf.shape)}"
