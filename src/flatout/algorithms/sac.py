"""Soft actor-critic (Haarnoja et al., 2018b), with an entropy weight that is fixed or learned.

`flatout.algorithms.registry` builds it. Actions are squashed into their bounds. Truncation
bootstraps, termination does not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import Algorithm, BuildSpec, Counters, State, Updated
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
from flatout.config.hyper import SACConfig
from flatout.config.schedules import entropy_coefficient
from flatout.randomness import normals
from flatout.types import Array, Batch, Obs

METRICS = (
    "actor_loss", "critic_loss", "td_error", "q_mean", "ent_coef", "entropy", "grad_norm",
    "learning_rate",
)  # fmt: skip
LOG_STD = (-20.0, 2.0)
"""The limits to which log standard deviations are clipped."""


class SACParams(NamedTuple):
    """The actor, the critics, the critics' targets, and the logarithm of the entropy weight (None
    if the weight is fixed)."""

    actor: Any
    critics: Any
    target_critics: Any
    log_ent: Array | None


class Optimisers(NamedTuple):
    """The optimisers' states; `ent` is None if the entropy weight is fixed."""

    actor: Any
    critic: Any
    ent: Any


def squashed(x: jax.Array, normal: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draw from a squashed Gaussian and return its log densities (appendix C of the paper).

    Args:
        x: ``[B, 2A]``, means and log standard deviations.
        normal: ``[B, A]`` standard normals.

    Returns:
        Actions ``[B, A]`` in -1..1 and log densities ``[B]``.
    """
    mean, log_std = jnp.split(x, 2, -1)
    log_std = jnp.clip(log_std, *LOG_STD)
    raw = mean + jnp.exp(log_std) * normal
    log_prob = (-0.5 * jnp.square(normal) - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
    # log(1 - tanh(raw)^2) without cancellation.
    log_prob -= (2.0 * (math.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))).sum(-1)
    return jnp.tanh(raw), log_prob


def entropy_weight(params: SACParams, hp: Any) -> jax.Array:
    """Return the weight of the entropy (alpha of the paper), learned or fixed."""
    return hp.ent_coef if params.log_ent is None else jnp.exp(params.log_ent)


def critic_loss(
    nets: ActorCritics, critics: Any, rows: tuple[Batch, jax.Array], params: SACParams, hp: Any
) -> Losses:
    """Return the critics' squared errors against the soft target (equation 5).

    Args:
        rows: a batch, and standard normals ``[B, A]`` for the next actions.
    """
    batch, drawn = rows
    next_action, next_log_prob = squashed(nets.outputs(params.actor, batch.next_obs), drawn)
    bootstrap = smallest(nets.values(params.target_critics, batch.next_obs, next_action))
    soft = bootstrap - entropy_weight(params, hp) * next_log_prob
    target = batch.rewards + batch.discounts * soft
    estimates = nets.values(critics, batch.obs, batch.actions)
    total, aux = squared_errors(estimates, target, batch)
    return 0.5 * total, aux


Value = Callable[[ActorCritics, Any, Obs, jax.Array], jax.Array]
"""``(nets, critics, prepared observations [B, ...], actions [B, A]) -> values [B]``, which the
actor maximises."""


def smaller_value(nets: ActorCritics, critics: Any, x: Obs, action: jax.Array) -> jax.Array:
    """Return the smaller of the two critics' values ``[B]``."""
    return smallest(nets.values(critics, x, action))


def actor_loss(
    value_of: Value, nets: ActorCritics, actor: Any, rows: tuple[Batch, jax.Array],
    params: SACParams, hp: Any,
) -> Losses:  # fmt: skip
    """Return the weighted log density of the actor's actions, minus their value (equation 7).

    Args:
        rows: a batch, and standard normals ``[B, A]`` for the actions.
    """
    batch, drawn = rows
    action, log_prob = squashed(nets.outputs(actor, batch.obs), drawn)
    value = value_of(nets, params.critics, batch.obs, action)
    soft = entropy_weight(params, hp) * log_prob
    return (soft - value).mean(), ({"entropy": -log_prob.mean()}, None)


def sac(config: SACConfig, spec: BuildSpec) -> Algorithm:
    """Build SAC's pure functions.

    Raises:
        UsageError: actions are not a bounded box, or the network does not fit.
    """
    bounds = Bounds(spec.action_spec, "sac")
    nets = ActorCritics(spec, bounds.size, 2 * bounds.size, 2, config.critic_hidden)
    return soft_actor_critic("sac", config, spec, bounds, nets, critic_loss, smaller_value)


def soft_actor_critic(
    name: str, config: SACConfig, spec: BuildSpec, bounds: Bounds, nets: ActorCritics,
    critic_loss: Callable[..., Losses], value_of: Value,
) -> Algorithm:  # fmt: skip
    """Build SAC's pure functions with these critics.

    Args:
        name: the algorithm's name.
        config, spec: the settings, the task and the run.
        bounds: the bounds of the actions.
        nets: the actor, with a mean and a deviation for each action component, and the critics.
        critic_loss: the loss of the critics; its arguments are those of `critic_loss`.
        value_of: the values that the actor maximises.
    """
    shards = spec.shards
    _, learned = entropy_coefficient("ent_coef", config.ent_coef)
    actor_optimiser, critic_optimiser = (Optimiser(shapes) for shapes in nets.shapes)
    ent_optimiser = Optimiser(np.zeros((), np.float32))

    def init(key: np.ndarray, hp: Any) -> State:
        actor, critics = jax.tree.map(np.asarray, nets.draw(key))
        log_ent = np.asarray(np.log(hp.ent_coef)) if learned else None
        params = SACParams(actor, critics, jax.tree.map(np.copy, critics), log_ent)
        opt = Optimisers(
            actor_optimiser.init(), critic_optimiser.init(),
            ent_optimiser.init() if learned else None,
        )  # fmt: skip
        counters = Counters(np.zeros((), np.int32), np.zeros((), np.int32))
        return State(params, opt, counters)

    def greedy(actor: Any, x: jax.Array) -> jax.Array:
        return jnp.tanh(nets.outputs(actor, x)[:, : bounds.size])

    def explore(params: ContinuousActorParams, x: jax.Array, normal: jax.Array) -> jax.Array:
        return squashed(nets.outputs(params.actor, x), normal)[0]

    critic_grad = spec.gradient(functools.partial(critic_loss, nets), config.batch_size)
    actor_grad = spec.gradient(functools.partial(actor_loss, value_of, nets), config.batch_size)

    def update(state: State, batch: Batch, key: jax.Array, hp: Any) -> Updated:
        params, opt, counters = state
        rows = batch.rewards.shape[0]
        batch = bounds.scaled(batch, spec.encoder)
        draw = shards.one_by_one(functools.partial(normals, count=2 * rows * bounds.size))
        drawn = draw(shards.key(key), jnp.zeros((), jnp.int32), counters.updates)
        drawn = drawn.reshape(2, rows, bounds.size)
        rate, ratio = rates(hp, counters.step)

        grads, metrics, error = critic_grad(params.critics, (batch, drawn[0]), params, hp)
        critics, critic_opt, norm = critic_optimiser.step(
            params.critics, grads, opt.critic, rate * ratio, hp.max_grad_norm
        )
        params = params._replace(critics=critics)
        grads, means, _ = actor_grad(params.actor, (batch, drawn[1]), params, hp)
        actor, actor_opt, _ = actor_optimiser.step(
            params.actor, grads, opt.actor, rate, hp.max_grad_norm
        )
        log_ent, ent_opt = params.log_ent, opt.ent
        if log_ent is not None:  # equation 18: the gradient is the entropy above its target
            target_entropy = -float(bounds.size) if hp.target_entropy is None else hp.target_entropy
            log_ent, ent_opt, _ = ent_optimiser.step(
                log_ent, means["entropy"] - target_entropy, ent_opt, rate
            )
        counters = counters._replace(updates=counters.updates + 1)
        metrics |= {
            "actor_loss": means["loss"], "critic_loss": metrics.pop("loss"),
            "ent_coef": entropy_weight(params, hp), "entropy": means["entropy"], "grad_norm": norm,
            "learning_rate": rate,
        }  # fmt: skip
        target = every(
            config.target_update_interval, counters.updates,
            lambda target: polyak(target, critics, hp.tau), params.target_critics,
        )  # fmt: skip
        params = SACParams(actor, critics, target, log_ent)
        state = State(params, Optimisers(actor_opt, critic_opt, ent_opt), counters)
        return shards.sync(state, counters.updates), metrics, error

    return box_algorithm(
        config, spec, bounds, greedy, explore,
        name=name, init=init, update=update, metrics=METRICS,
    )  # fmt: skip
