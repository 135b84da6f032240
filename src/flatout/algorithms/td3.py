"""TD3 (Fujimoto et al., 2018), and DDPG (Lillicrap et al., 2016), which is TD3 without its three
additions.

`flatout.algorithms.registry` builds both. Actions are clipped to their bounds. Truncation
bootstraps, termination does not.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import Algorithm, BuildSpec, State, Updated
from flatout.algorithms.common.continuous import (
    ActorCritics,
    Bounds,
    ContinuousActorParams,
    box_algorithm,
    every,
    rates,
    smallest,
    squared_errors,
)
from flatout.algorithms.common.optimiser import Optimiser, polyak
from flatout.algorithms.shards import Losses
from flatout.config.hyper import DDPGConfig, TD3Config
from flatout.randomness import normals
from flatout.types import Array, Batch

METRICS = ("actor_loss", "critic_loss", "td_error", "q_mean", "grad_norm", "learning_rate")


class TD3Params(NamedTuple):
    """The actor, the critics, and their targets."""

    actor: Any
    critics: Any
    target_actor: Any
    target_critics: Any


class TD3Counters(NamedTuple):
    """Environment steps and updates (int32), and the actor's last loss, for the metrics."""

    step: Array
    updates: Array
    actor_loss: Array


def critic_loss(
    nets: ActorCritics, critics: Any, rows: tuple[Batch, jax.Array | None], params: TD3Params,
    hp: Any,
) -> Losses:  # fmt: skip
    """Return the critics' squared errors against the clipped double-Q target (equation 14).

    Args:
        rows: a batch, and standard normals ``[B, A]`` for the smoothing of target actions
            (equation 15), or None.
    """
    batch, drawn = rows
    next_action = nets.bounded(params.target_actor, batch.next_obs)
    if drawn is not None:
        reach = hp.target_noise_clip
        noise = jnp.clip(hp.target_policy_noise * drawn, -reach, reach)
        next_action = jnp.clip(next_action + noise, -1.0, 1.0)
    bootstrap = smallest(nets.values(params.target_critics, batch.next_obs, next_action))
    target = batch.rewards + batch.discounts * bootstrap
    return squared_errors(nets.values(critics, batch.obs, batch.actions), target, batch)


def actor_loss(nets: ActorCritics, actor: Any, batch: Batch, critics: Any) -> Losses:
    """Return minus the mean value of the actor's actions (algorithm 1, deterministic gradient)."""
    action = nets.bounded(actor, batch.obs)
    return -nets.values(critics, batch.obs, action)[0].mean(), ({}, None)


def td3(config: DDPGConfig, spec: BuildSpec) -> Algorithm:
    """Build the pure functions of TD3 for a `TD3Config`, else those of DDPG.

    Raises:
        UsageError: actions are not a bounded box, or the network does not fit.
    """
    twin = isinstance(config, TD3Config)
    name, delay = ("td3", config.policy_delay) if isinstance(config, TD3Config) else ("ddpg", 1)
    bounds = Bounds(spec.action_spec, name)
    shards = spec.shards
    nets = ActorCritics(spec, bounds.size, bounds.size, 2 if twin else 1, config.critic_hidden)
    actor_optimiser, critic_optimiser = (Optimiser(shapes) for shapes in nets.shapes)

    def init(key: np.ndarray, hp: Any) -> State:
        actor, critics = jax.tree.map(np.asarray, nets.draw(key))
        params = TD3Params(actor, critics, *jax.tree.map(np.copy, (actor, critics)))
        zero = np.zeros((), np.int32)
        counters = TD3Counters(zero, zero.copy(), np.zeros((), np.float32))
        return State(params, (actor_optimiser.init(), critic_optimiser.init()), counters)

    def explore(params: ContinuousActorParams, x: jax.Array, normal: Array) -> jax.Array:
        return jnp.clip(nets.bounded(params.actor, x) + params.noise * normal, -1.0, 1.0)

    critic_grad = spec.gradient(functools.partial(critic_loss, nets), config.batch_size)
    actor_grad = spec.gradient(functools.partial(actor_loss, nets), config.batch_size)

    def update(state: State, batch: Batch, key: jax.Array, hp: Any) -> Updated:
        counters = state.counters
        rows = batch.rewards.shape[0]
        batch = bounds.scaled(batch, spec.encoder)
        drawn = None
        if twin:
            draw = shards.one_by_one(functools.partial(normals, count=rows * bounds.size))
            drawn = draw(shards.key(key), jnp.zeros((), jnp.int32), counters.updates)
            drawn = drawn.reshape(rows, bounds.size)
        rate, ratio = rates(hp, counters.step)
        params, (actor_opt, critic_opt) = state.params, state.opt
        grads, metrics, error = critic_grad(params.critics, (batch, drawn), params, hp)
        critics, critic_opt, norm = critic_optimiser.step(
            params.critics, grads, critic_opt, rate * ratio, hp.max_grad_norm
        )
        counters = counters._replace(updates=counters.updates + 1)
        state = State(params._replace(critics=critics), (actor_opt, critic_opt), counters)

        def improve(state: State) -> State:
            params, (opt, critic_opt) = state.params, state.opt
            grads, means, _ = actor_grad(params.actor, batch, params.critics)
            actor, opt, _ = actor_optimiser.step(params.actor, grads, opt, rate, hp.max_grad_norm)
            counters = state.counters._replace(actor_loss=means["loss"])
            return State(params._replace(actor=actor), (opt, critic_opt), counters)

        def follow(state: State) -> State:
            actor, critics, *targets = state.params
            followed = polyak(tuple(targets), (actor, critics), hp.tau)
            return state._replace(params=TD3Params(actor, critics, *followed))

        state = every(delay, counters.updates, improve, state)
        state = every(delay * config.target_update_interval, counters.updates, follow, state)
        metrics |= {
            "actor_loss": state.counters.actor_loss, "critic_loss": metrics.pop("loss"),
            "grad_norm": norm, "learning_rate": rate,
        }  # fmt: skip
        return shards.sync(state, counters.updates), metrics, error

    return box_algorithm(
        config, spec, bounds, nets.bounded, explore,
        name=name, init=init, update=update, metrics=METRICS,
    )  # fmt: skip
