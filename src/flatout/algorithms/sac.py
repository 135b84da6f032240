"""Soft actor-critic (Haarnoja et al., 2018b) with an entropy weight that may be learned.

Actions are squashed into their bounds. Truncation bootstraps, termination does not.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import Acted, Algorithm, BuildSpec, Updated, replay_spec, shapes_of
from flatout.algorithms.common.continuous import (
    ActorCritics,
    ActorParams,
    Bounds,
    Noise,
    observe,
    smallest,
    step_noise,
    warm_up,
)
from flatout.algorithms.common.optimiser import Optimiser, polyak, schedule
from flatout.algorithms.common.randomness import normals
from flatout.algorithms.parallel.accumulate import in_pieces, pieces_of
from flatout.config.hyper import SACConfig, entropy_coefficient, linear
from flatout.types import Array, Batch

METRICS = (
    "actor_loss", "critic_loss", "td_error", "q_mean", "ent_coef", "entropy", "grad_norm",
    "learning_rate",
)  # fmt: skip
LOG_STD = (-20.0, 2.0)
"""Between which log standard deviations are clipped."""


class State(NamedTuple):
    """Everything that learning changes; `log_ent` is the logarithm of the entropy weight."""

    actor: Any
    critics: Any
    target_critics: Any
    log_ent: Array
    actor_optimiser: Any
    critic_optimiser: Any
    ent_optimiser: Any
    epsilon: Array
    step: Array
    updates: Array


def squashed(x: jax.Array, normal: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A squashed Gaussian's draws and their log densities (appendix C of the paper).

    Args:
        x: ``[B, 2A]``, means and log deviations.
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


def sac(config: SACConfig, spec: BuildSpec) -> Algorithm:
    """Build SAC's pure functions.

    Raises:
        UsageError: actions that are not a bounded box, or a network that does not fit.
    """
    bounds = Bounds(spec.action_spec, "sac")
    replay, shards, obs_spec = replay_spec(config, spec.total_steps), spec.shards, spec.obs_spec
    learning_rate = linear("learning_rate", config.learning_rate)
    critic_ratio = (config.critic_learning_rate or learning_rate[0]) / learning_rate[0]
    start, learned = entropy_coefficient("ent_coef", config.ent_coef)
    aim = -float(bounds.size) if config.target_entropy is None else config.target_entropy

    networks = ActorCritics(spec, bounds.size, 2 * bounds.size, 2)
    outputs, q = networks.outputs, networks.values
    actor_steps, critic_steps = (
        Optimiser(shapes, "adam", config.max_grad_norm) for shapes in networks.shapes
    )
    ent_steps = Optimiser(np.zeros((), np.float32))

    def fresh(actor: Any, critics: Any) -> State:
        actor, critics = jax.tree.map(np.asarray, (actor, critics))
        return State(
            actor=actor,
            critics=critics,
            target_critics=jax.tree.map(np.copy, critics),
            log_ent=np.asarray(math.log(start) if start else -np.inf, np.float32),
            actor_optimiser=actor_steps.init(),
            critic_optimiser=critic_steps.init(),
            ent_optimiser=ent_steps.init() if learned else None,
            epsilon=np.asarray(config.learning_starts > 0, np.float32),
            step=np.zeros((), np.int32),
            updates=np.zeros((), np.int32),
        )

    def act(params: ActorParams, obs: jax.Array, carry: Any, draw: Noise | None) -> Acted:
        if draw is None:
            x = outputs(params.actor, observe(obs_spec, obs))
            return bounds.to_environment(jnp.tanh(x[:, : bounds.size])), carry, {}

        def run(_: Any) -> jax.Array:
            return squashed(outputs(params.actor, observe(obs_spec, obs)), draw.normal)[0]

        action = jax.lax.cond(params.epsilon > 0, lambda _: draw.uniform, run, None)
        return bounds.to_environment(action), carry, {}

    pieces = pieces_of(config.batch_size // shards.count, spec.micro_batch)

    def critics_gradient(
        state: State, rows: tuple[Batch, jax.Array], ent_coef: jax.Array
    ) -> tuple[Any, Any]:
        """``(loss, mean value, gradient)`` of the critics, and errors ``[B]``."""
        batch, drawn = rows
        x, next_x = observe(obs_spec, batch.obs), observe(obs_spec, batch.next_obs)
        action = bounds.from_environment(batch.actions)
        next_action, next_log_prob = squashed(outputs(state.actor, next_x), drawn)
        bootstrap = smallest(q(state.target_critics, next_x, next_action))
        target = batch.rewards + batch.discounts * (bootstrap - ent_coef * next_log_prob)

        def loss(critics: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            estimates = q(critics, x, action)
            losses = [0.5 * (batch.weights * jnp.square(one - target)).mean() for one in estimates]
            error = jnp.abs(jnp.stack(estimates) - target).mean(0)
            return sum(losses, jnp.zeros(())), (error, estimates[0].mean())

        (value, (error, q_mean)), grads = jax.value_and_grad(loss, has_aux=True)(state.critics)
        return (value, q_mean, grads), error

    def actor_gradient(
        networks: tuple[Any, Any], rows: tuple[jax.Array, jax.Array], ent_coef: jax.Array
    ) -> tuple[Any, None]:
        """The actor's gradient, the mean value and mean log-probability of what it chooses."""
        (actor, critics), (obs, drawn) = networks, rows
        x = observe(obs_spec, obs)

        def policy(actor: Any) -> tuple[jax.Array, jax.Array]:
            return squashed(outputs(actor, x), drawn)

        # Only the gradient by action is needed of the critics, not by their parameters.
        (chosen, log_prob), pull = jax.vjp(policy, actor)
        value, by_action = jax.value_and_grad(lambda a: smallest(q(critics, x, a)).mean())(chosen)
        (grads,) = pull((-by_action, jnp.full_like(log_prob, 1.0 / len(x)) * ent_coef))
        return (grads, value, log_prob.mean()), None

    critic_grads = in_pieces(critics_gradient, pieces, shards)
    direct = in_pieces(actor_gradient, pieces, shards)

    def update(state: State, batch: Batch, key: jax.Array) -> Updated:
        rows, alone = batch.rewards.shape[0], shards.each_step
        draw = shards.one_by_one(functools.partial(normals, count=2 * rows * bounds.size))
        drawn = draw(shards.key(key), jnp.zeros((), jnp.int32), state.updates)
        drawn = drawn.reshape(2, rows, bounds.size)
        ent_coef = jnp.exp(state.log_ent)
        rate = schedule(learning_rate, state.step, spec.total_steps)

        (loss, q_mean, grads), error = critic_grads(state, (batch, drawn[0]), ent_coef)
        scalars = {"critic_loss": loss, "td_error": error.mean(), "q_mean": q_mean}
        grads, scalars = alone.mean((grads, scalars))
        critics, critic_optimiser, norm = critic_steps.step(
            state.critics, grads, state.critic_optimiser, rate * critic_ratio
        )
        computed, _ = direct((state.actor, critics), (batch.obs, drawn[1]), ent_coef)
        grads, value, mean_log_prob = alone.mean(computed)
        actor, actor_optimiser, _ = actor_steps.step(
            state.actor, grads, state.actor_optimiser, rate
        )
        log_ent, ent_optimiser = state.log_ent, state.ent_optimiser
        if learned:
            log_ent, ent_optimiser, _ = ent_steps.step(
                log_ent, -(mean_log_prob + aim), ent_optimiser, rate
            )
        updates = state.updates + 1
        target = state.target_critics
        if config.target_update_interval == 1:
            target = polyak(target, critics, config.tau)
        else:
            target = jax.lax.cond(
                updates % config.target_update_interval == 0,
                lambda: polyak(state.target_critics, critics, config.tau),
                lambda: state.target_critics,
            )
        metrics = scalars | {
            "actor_loss": ent_coef * mean_log_prob - value, "ent_coef": ent_coef,
            "entropy": -mean_log_prob, "grad_norm": norm, "learning_rate": rate,
        }  # fmt: skip
        state = state._replace(
            actor=actor,
            critics=critics,
            target_critics=target,
            log_ent=log_ent,
            actor_optimiser=actor_optimiser,
            critic_optimiser=critic_optimiser,
            ent_optimiser=ent_optimiser,
            updates=updates,
        )
        return shards.sync(state, updates), metrics, error

    return Algorithm(
        name="sac",
        init=lambda key: fresh(*networks.draw(key)),
        shapes=shapes_of(fresh(*networks.shapes)),
        noise=lambda key, env, step: step_noise(key, env, step, bounds.size),
        act=act,
        update=update,
        actor=lambda state: ActorParams(state.actor, state.epsilon),
        horizon=replay.horizon(spec.num_envs),
        episodes=None,
        metrics=METRICS,
        replay=replay,
        advance=warm_up(config.learning_starts),
        shards=shards,
    )
