"""Algorithms of a user's, right or wrong in one way, as ``tests.own_algorithms:name``."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout import Algorithm, BuildSpec, Counters, ReplaySpec, State
from flatout.config.schema import NetworkConfig
from flatout.types import DiscreteSpec, ObservationSpec

HORIZON = 8
NO_FUNCTION = "text"
SPEC = BuildSpec(NetworkConfig(), ObservationSpec((4,), "float32"), DiscreteSpec(2), 2, 64)
"""CartPole-v1 in two environments."""


class HyperParameters(NamedTuple):
    rate: Any = np.float32(0.01)
    scale: Any = np.ones(2, np.float32)


def init(key: Any, hp: Any) -> State:
    params = {"w": np.random.default_rng(key).normal(size=(4, 2)).astype(np.float32)}
    return State(params, {"sum": np.zeros((), np.float32)}, Counters(np.int32(0), np.int32(0)))


def noise(key: Any, env: Any, step: Any) -> jax.Array:
    return jax.random.gumbel(jax.random.fold_in(jax.random.fold_in(key, env), step), (2,))


def act(params: Any, obs: Any, carry: Any, noise: Any) -> Any:
    logits = obs @ params["w"]
    action = (logits if noise is None else logits + noise).argmax(-1).astype(jnp.int32)
    return action, carry, {"top": logits.max(-1)}


def update(state: State, trajectory: Any, key: Any, hp: Any) -> Any:
    """Nothing that learns; each number depends on all that was collected."""
    seen = trajectory.obs.mean((0, 1))
    params = {"w": state.params["w"] - hp.rate * seen[:, None] * hp.scale}
    counters = Counters(state.counters.step + trajectory.rewards.size, state.counters.updates + 1)
    metrics = {"top": trajectory.extras["top"].mean(), "updates": jnp.ones(())}
    return State(params, {"sum": state.opt["sum"] + seen.sum()}, counters), metrics, None


def good(spec: BuildSpec = SPEC) -> Algorithm:
    return Algorithm(
        "good", HyperParameters(), init, act, update, ("top", "updates"), HORIZON, noise,
        shards=spec.shards,
    )  # fmt: skip


def wider(spec: BuildSpec = SPEC) -> Algorithm:
    """The same with more parameters, of which it reads as many as `good`."""

    def init(key: Any, hp: Any) -> State:
        state = good(spec).init(key, hp)
        return state._replace(params={"w": np.concatenate([state.params["w"]] * 2)})

    def act(params: Any, obs: Any, carry: Any, noise: Any) -> Any:
        return good(spec).act({"w": params["w"][:4]}, obs, carry, noise)

    def update(state: State, trajectory: Any, key: Any, hp: Any) -> Any:
        return state, {"top": trajectory.rewards.mean(), "updates": jnp.ones(())}, None

    return replace(good(spec), init=init, act=act, update=update, shapes=None)


def replayed(spec: BuildSpec = SPEC) -> Algorithm:
    """The same from replay."""

    class Needed(NamedTuple):
        gamma: Any = np.float32(0.9)

    def update(state: State, batch: Any, key: Any, hp: Any) -> Any:
        params = {"w": state.params["w"] - 0.01 * batch.obs.mean(0)[:, None]}
        counters = state.counters._replace(updates=state.counters.updates + 1)
        metrics = {"reward": batch.rewards.mean()}
        return state._replace(params=params, counters=counters), metrics, jnp.abs(batch.rewards)

    def advance(state: State, steps: Any, hp: Any) -> Any:
        counters = state.counters._replace(step=state.counters.step + steps)
        return state._replace(counters=counters), {}

    wants = ReplaySpec(4, train_freq=8, gradient_steps=1, learning_starts=8, buffer_size=64)
    return replace(
        good(spec), hp=Needed(), update=update, metrics=("reward",), replay=wants,
        horizon=wants.horizon(spec.num_envs), advance=advance,
    )  # fmt: skip


# --- Wrong in one way -------------------------------------------------------------------------


def fails(spec: BuildSpec) -> Algorithm:
    raise LookupError("no such thing\nin here")


def returns_none(spec: BuildSpec) -> Any:
    return None


def named_ppo(spec: BuildSpec) -> Algorithm:
    return replace(good(spec), name="ppo")


def _with_init(spec: BuildSpec, draw: Any) -> Algorithm:
    return replace(good(spec), init=draw, shapes=None)


def init_fails(spec: BuildSpec) -> Algorithm:
    return _with_init(spec, lambda key, hp: init(key, hp.no_such_field))


def init_no_state(spec: BuildSpec) -> Algorithm:
    return _with_init(spec, lambda key, hp: {"w": np.zeros(2, np.float32)})


def init_no_step(spec: BuildSpec) -> Algorithm:
    return _with_init(spec, lambda key, hp: init(key, hp)._replace(counters=np.int32(0)))


def init_python_number(spec: BuildSpec) -> Algorithm:
    return _with_init(spec, lambda key, hp: init(key, hp)._replace(opt={"sum": 0.0}))


def init_float64(spec: BuildSpec) -> Algorithm:
    return _with_init(spec, lambda key, hp: init(key, hp)._replace(params={"w": np.zeros((4, 2))}))


def _with_update(spec: BuildSpec, change: Any) -> Algorithm:
    return replace(good(spec), update=lambda *given: change(*update(*given)))


def update_two_values(spec: BuildSpec) -> Algorithm:
    return _with_update(spec, lambda state, metrics, errors: (state, metrics))


def update_list_of_metrics(spec: BuildSpec) -> Algorithm:
    return _with_update(spec, lambda state, metrics, errors: (state, list(metrics), errors))


def update_more(spec: BuildSpec) -> Algorithm:
    def change(state: State, metrics: Any, errors: Any) -> Any:
        return state._replace(params=state.params | {"b": state.params["w"]}), metrics, errors

    return _with_update(spec, change)


def update_less(spec: BuildSpec) -> Algorithm:
    return _with_update(spec, lambda state, *rest: (state._replace(opt={}), *rest))


def update_shape(spec: BuildSpec) -> Algorithm:
    def change(state: State, *rest: Any) -> Any:
        return state._replace(params={"w": state.params["w"][:3]}), *rest

    return _with_update(spec, change)


def update_dtype(spec: BuildSpec) -> Algorithm:
    def change(state: State, *rest: Any) -> Any:
        counters = state.counters._replace(step=state.counters.step * 1.0)
        return state._replace(counters=counters), *rest

    return _with_update(spec, change)


def update_fails(spec: BuildSpec) -> Algorithm:
    return replace(good(spec), update=lambda state, trajectory, key, hp: state.params["v"])


def metric_missing(spec: BuildSpec) -> Algorithm:
    return replace(good(spec), metrics=("top", "entropy", "updates"))


def metric_not_scalar(spec: BuildSpec) -> Algorithm:
    def change(state: State, metrics: Any, errors: Any) -> Any:
        return state, metrics | {"top": jnp.ones((3, 2))}, errors

    return _with_update(spec, change)


def no_updates(spec: BuildSpec) -> Algorithm:
    return replace(good(spec), metrics=("top",))


def _with_act(spec: BuildSpec, change: Any) -> Algorithm:
    return replace(good(spec), act=lambda *given: change(*act(*given)))


def act_numpy_random(spec: BuildSpec) -> Algorithm:
    drawn = np.random.default_rng(0)
    return _with_act(spec, lambda action, *rest: ((action + drawn.integers(999)) % 2, *rest))


def act_numpy_array(spec: BuildSpec) -> Algorithm:
    """What is drawn is an array of the program instead of a number in it."""
    drawn = np.random.default_rng(0)

    def change(action: Any, carry: Any, extras: Any) -> Any:
        return action, carry, {"top": extras["top"] + drawn.random(2).astype(np.float32)}

    return _with_act(spec, change)


def act_counter(spec: BuildSpec) -> Algorithm:
    count = itertools.count()
    return _with_act(spec, lambda action, *rest: ((action + next(count)) % 2, *rest))


def act_keeps(spec: BuildSpec) -> Algorithm:
    """Actions that it was given are kept beyond the call."""
    kept: list[Any] = []

    def change(action: Any, *rest: Any) -> Any:
        kept.append(action)
        return (action, *rest)

    return _with_act(spec, change)


def actor_integers(spec: BuildSpec) -> Algorithm:
    return replace(good(spec), actor=lambda state, hp: {"n": state.counters.step, **state.params})


def actor_fails(spec: BuildSpec) -> Algorithm:
    return replace(good(spec), actor=lambda state, hp: state.network)


def noise_fails(spec: BuildSpec) -> Algorithm:
    return replace(good(spec), noise=lambda key, env, step: jax.random.normal(key, env))


def act_fails(spec: BuildSpec) -> Algorithm:
    return replace(good(spec), act=lambda params, obs, *rest: obs @ params["v"])


def act_shape(spec: BuildSpec) -> Algorithm:
    return _with_act(spec, lambda action, *rest: (action[:, None], *rest))


def act_dtype(spec: BuildSpec) -> Algorithm:
    return _with_act(spec, lambda action, *rest: (action.astype(jnp.float32), *rest))


def act_two_values(spec: BuildSpec) -> Algorithm:
    return _with_act(spec, lambda action, carry, extras: (action, extras))


def act_no_names(spec: BuildSpec) -> Algorithm:
    return _with_act(spec, lambda action, carry, extras: (action, carry, ()))


def extra_without_rows(spec: BuildSpec) -> Algorithm:
    return _with_act(spec, lambda action, carry, extras: (action, carry, {"top": jnp.ones(())}))


def extra_too_narrow(spec: BuildSpec) -> Algorithm:
    return _with_act(spec, lambda action, carry, extras: (action, carry, {"top": action == 1}))


def extra_named_action(spec: BuildSpec) -> Algorithm:
    return _with_act(spec, lambda action, carry, extras: (action, carry, {"action": 1 - action}))


def advance_shape(spec: BuildSpec) -> Algorithm:
    def advance(state: State, steps: Any, hp: Any) -> Any:
        counters = state.counters._replace(step=jnp.ones(2, jnp.int32))
        return state._replace(counters=counters), {}

    return replace(replayed(spec), advance=advance)


def advance_state_alone(spec: BuildSpec) -> Algorithm:
    return replace(replayed(spec), advance=lambda state, steps, hp: state)


def replay_without_gamma(spec: BuildSpec) -> Algorithm:
    return replace(replayed(spec), hp=HyperParameters())


def no_steps(spec: BuildSpec = SPEC) -> Algorithm:
    return replace(good(spec), horizon=0)


def replay_every_no_step(spec: BuildSpec = SPEC) -> Algorithm:
    right = replayed(spec)
    assert right.replay is not None
    return replace(right, replay=replace(right.replay, train_freq=0))


def replay_without_advance(spec: BuildSpec) -> Algorithm:
    return replace(replayed(spec), advance=None)


def prioritised_without_exponents(spec: BuildSpec) -> Algorithm:
    right = replayed(spec)
    assert right.replay is not None
    return replace(right, replay=replace(right.replay, prioritized=True))


def errors_missing(spec: BuildSpec) -> Algorithm:
    right = replayed(spec)
    return replace(right, update=lambda *given: (*right.update(*given)[:2], None))


# --- Right ------------------------------------------------------------------------------------


@jax.custom_jvp
def _clipped(x: jax.Array) -> jax.Array:
    return jnp.clip(x, -1, 1)


_clipped.defjvp(lambda primals, tangents: (_clipped(*primals), tangents[0]))


def act_own_derivative(spec: BuildSpec) -> Algorithm:
    """Pure, though a trace shows where Python keeps the rule."""
    return replace(good(spec), act=lambda params, obs, *rest: act(params, _clipped(obs), *rest))


def no_hp(spec: BuildSpec) -> Algorithm:
    """Without hyper-parameters."""

    def fixed(state: State, trajectory: Any, key: Any, hp: Any) -> Any:
        return update(state, trajectory, key, HyperParameters())

    return replace(good(spec), hp=(), init=lambda key, hp: init(key, None), update=fixed)


def diverges(spec: BuildSpec) -> Algorithm:
    """Its parameters become NaN in the third update, and no metric does."""

    def change(state: State, *rest: Any) -> Any:
        bad = jnp.where(state.counters.updates >= 3, jnp.nan, 0.0)
        return state._replace(params={"w": state.params["w"] + bad}), *rest

    return _with_update(spec, change)


def loss_diverges(spec: BuildSpec) -> Algorithm:
    """A metric and a moment of the optimiser become NaN together with the parameters."""

    def change(state: State, metrics: Any, errors: Any) -> Any:
        bad = jnp.where(state.counters.updates >= 3, jnp.nan, 0.0)
        params, opt = {"w": state.params["w"] + bad}, {"sum": state.opt["sum"] + bad}
        return State(params, opt, state.counters), metrics | {"top": metrics["top"] + bad}, errors

    return _with_update(spec, change)
