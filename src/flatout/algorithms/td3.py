"""TD3 (Fujimoto et al., 2018), and DDPG (Lillicrap et al., 2016) as its plain case.

Actions are clipped to their bounds. Truncation bootstraps, termination does not.
"""

from __future__ import annotations

import functools
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
from flatout.config.hyper import DDPGConfig, TD3Config, linear
from flatout.types import Array, Batch

METRICS = ("actor_loss", "critic_loss", "td_error", "q_mean", "grad_norm", "learning_rate")


class State(NamedTuple):
    """Everything that learning changes; `actor_loss` is the last one, for the metrics."""

    actor: Any
    critics: Any
    target_actor: Any
    target_critics: Any
    actor_optimiser: Any
    critic_optimiser: Any
    actor_loss: Array
    epsilon: Array
    step: Array
    updates: Array


def td3(config: DDPGConfig, spec: BuildSpec) -> Algorithm:
    """Build the pure functions: TD3's for its configuration, DDPG's for a plain one.

    Raises:
        UsageError: actions that are not a bounded box, or a network that does not fit.
    """
    twin = isinstance(config, TD3Config)
    delay = config.policy_delay if isinstance(config, TD3Config) else 1
    spread, reach = 0.0, 0.0
    if isinstance(config, TD3Config):
        spread, reach = config.target_policy_noise, config.target_noise_clip
    name = "td3" if twin else "ddpg"
    bounds = Bounds(spec.action_spec, name)
    replay, shards, obs_spec = replay_spec(config, spec.total_steps), spec.shards, spec.obs_spec
    learning_rate = linear("learning_rate", config.learning_rate)
    critic_ratio = (config.critic_learning_rate or learning_rate[0]) / learning_rate[0]

    networks = ActorCritics(spec, bounds.size, bounds.size, 2 if twin else 1)
    q = networks.values
    actor_steps, critic_steps = (
        Optimiser(shapes, "adam", config.max_grad_norm) for shapes in networks.shapes
    )

    def fresh(actor: Any, critics: Any) -> State:
        actor, critics = jax.tree.map(np.asarray, (actor, critics))
        return State(
            actor=actor,
            critics=critics,
            target_actor=jax.tree.map(np.copy, actor),
            target_critics=jax.tree.map(np.copy, critics),
            actor_optimiser=actor_steps.init(),
            critic_optimiser=critic_steps.init(),
            actor_loss=np.zeros((), np.float32),
            epsilon=np.asarray(config.learning_starts > 0, np.float32),
            step=np.zeros((), np.int32),
            updates=np.zeros((), np.int32),
        )

    def means(actor: Any, x: jax.Array) -> jax.Array:
        return jnp.tanh(networks.outputs(actor, x))

    def act(params: ActorParams, obs: jax.Array, carry: Any, draw: Noise | None) -> Acted:
        if draw is None:
            action = means(params.actor, observe(obs_spec, obs))
            return bounds.to_environment(action), carry, {}

        def run(_: Any) -> jax.Array:
            action = means(params.actor, observe(obs_spec, obs))
            return jnp.clip(action + config.action_noise * draw.normal, -1.0, 1.0)

        action = jax.lax.cond(params.epsilon > 0, lambda _: draw.uniform, run, None)
        return bounds.to_environment(action), carry, {}

    pieces = pieces_of(config.batch_size // shards.count, spec.micro_batch)

    def critics_gradient(state: State, rows: tuple[Batch, jax.Array | None]) -> tuple[Any, Any]:
        """``(loss, mean value, gradient)`` of the critics, and errors ``[B]``."""
        batch, drawn = rows
        x, next_x = observe(obs_spec, batch.obs), observe(obs_spec, batch.next_obs)
        action = bounds.from_environment(batch.actions)
        next_action = means(state.target_actor, next_x)
        if drawn is not None:
            drawn = jnp.clip(spread * drawn, -reach, reach)
            next_action = jnp.clip(next_action + drawn, -1.0, 1.0)
        bootstrap = smallest(q(state.target_critics, next_x, next_action))
        target = batch.rewards + batch.discounts * bootstrap

        def loss(critics: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            estimates = q(critics, x, action)
            losses = [(batch.weights * jnp.square(one - target)).mean() for one in estimates]
            error = jnp.abs(jnp.stack(estimates) - target).mean(0)
            return sum(losses, jnp.zeros(())), (error, estimates[0].mean())

        (value, (error, q_mean)), grads = jax.value_and_grad(loss, has_aux=True)(state.critics)
        return (value, q_mean, grads), error

    def actor_gradient(networks: tuple[Any, Any], obs: jax.Array) -> tuple[Any, None]:
        """Minus the mean value of what the actor chooses, and its gradient by the actor."""
        actor, critics = networks
        x = observe(obs_spec, obs)

        def loss(actor: Any) -> jax.Array:
            return -q(critics, x, means(actor, x))[0].mean()

        return jax.value_and_grad(loss)(actor), None

    critic_grads = in_pieces(critics_gradient, pieces, shards)
    direct = in_pieces(actor_gradient, pieces, shards)

    def update(state: State, batch: Batch, key: jax.Array) -> Updated:
        drawn = None
        if spread:
            rows = batch.rewards.shape[0]
            draw = shards.one_by_one(functools.partial(normals, count=rows * bounds.size))
            drawn = draw(shards.key(key), jnp.zeros((), jnp.int32), state.updates)
            drawn = drawn.reshape(rows, bounds.size)
        (loss, q_mean, grads), error = critic_grads(state, (batch, drawn))
        scalars = {"critic_loss": loss, "td_error": error.mean(), "q_mean": q_mean}
        grads, scalars = shards.each_step.mean((grads, scalars))
        rate = schedule(learning_rate, state.step, spec.total_steps)
        critics, critic_optimiser, norm = critic_steps.step(
            state.critics, grads, state.critic_optimiser, rate * critic_ratio
        )
        updates = state.updates + 1
        state = state._replace(critics=critics, critic_optimiser=critic_optimiser, updates=updates)

        def improve(state: State) -> State:
            computed, _ = direct((state.actor, state.critics), batch.obs)
            value, grads = shards.each_step.mean(computed)
            actor, optimiser, _ = actor_steps.step(state.actor, grads, state.actor_optimiser, rate)
            return state._replace(actor=actor, actor_optimiser=optimiser, actor_loss=value)

        def follow(state: State) -> State:
            return state._replace(
                target_actor=polyak(state.target_actor, state.actor, config.tau),
                target_critics=polyak(state.target_critics, state.critics, config.tau),
            )

        if delay == 1:
            state = improve(state)
        else:
            state = jax.lax.cond(updates % delay == 0, improve, lambda s: s, state)
        every = delay * config.target_update_interval
        if every == 1:
            state = follow(state)
        else:
            state = jax.lax.cond(updates % every == 0, follow, lambda s: s, state)
        metrics = scalars | {
            "actor_loss": state.actor_loss, "grad_norm": norm, "learning_rate": rate,
        }  # fmt: skip
        return shards.sync(state, updates), metrics, error

    return Algorithm(
        name=name,
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
