"""TD3 (Fujimoto et al., 2018), and DDPG (Lillicrap et al., 2016) as its plain case.

Actions are clipped to their bounds. Truncation bootstraps, termination does not.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import Algorithm, replay_spec, shapes_of
from flatout.algorithms.common.continuous import (
    ActorParams,
    Bounds,
    Noise,
    action_values,
    make_trunk,
    observe,
    smallest,
    split,
    step_noise,
    warm_up,
)
from flatout.algorithms.common.optimiser import Optimiser, polyak, schedule
from flatout.algorithms.common.randomness import normals
from flatout.algorithms.parallel.accumulate import in_pieces, pieces_of
from flatout.algorithms.parallel.shards import UNSHARDED, Shards
from flatout.config.hyper import DDPGConfig, TD3Config, linear
from flatout.config.schema import NetworkConfig
from flatout.networks.layers import Draw, FanIn
from flatout.networks.torsos import Network
from flatout.types import ActionSpec, Array, Batch, ObservationSpec

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


def td3(
    config: DDPGConfig,
    network_config: NetworkConfig,
    obs_spec: ObservationSpec,
    action_spec: ActionSpec,
    *,
    num_envs: int,
    total_steps: int,
    network: Network | None = None,
    shards: Shards = UNSHARDED,
    micro_batch: int | None = None,
) -> Algorithm:
    """Build the pure functions: TD3's for its configuration, DDPG's for a plain one.

    Args:
        config: hyper-parameters.
        network_config: the hidden layers' settings.
        obs_spec: one environment's observation.
        action_spec: one environment's action, a bounded box.
        num_envs: N.
        total_steps: environment steps of the whole run, over which schedules run.
        network: a custom torso, or None for the configured one.
        shards: the logical shards of each update.
        micro_batch: rows of a shard whose gradients are computed at once; None for all.

    Raises:
        UsageError: actions that are not a bounded box, or a network that does not fit.
    """
    twin = isinstance(config, TD3Config)
    delay = config.policy_delay if isinstance(config, TD3Config) else 1
    spread, reach = 0.0, 0.0
    if isinstance(config, TD3Config):
        spread, reach = config.target_policy_noise, config.target_noise_clip
    name = "td3" if twin else "ddpg"
    bounds = Bounds(action_spec, name)
    needs = replay_spec(config, total_steps)
    learning_rate = linear("learning_rate", config.learning_rate)
    critic_ratio = (config.critic_learning_rate or learning_rate[0]) / learning_rate[0]

    def build(draw: Draw) -> tuple[Any, Any]:
        actor = make_trunk(draw, obs_spec, network_config, network, 0, bounds.size)
        critics = tuple(
            make_trunk(draw, obs_spec, network_config, network, bounds.size, 1)
            for _ in range(2 if twin else 1)
        )
        return actor, critics

    actor_arrays, actor_static = split(build(FanIn(None))[0])
    critic_arrays, critic_static = split(build(FanIn(None))[1])
    actor_steps = Optimiser(actor_arrays, "adam", config.max_grad_norm)
    critic_steps = Optimiser(critic_arrays, "adam", config.max_grad_norm)

    def init(key: np.ndarray) -> State:
        actor, critics = build(FanIn(np.random.default_rng(key)))
        return fresh(eqx.filter(actor, eqx.is_array), eqx.filter(critics, eqx.is_array))

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
        return jnp.tanh(eqx.combine(actor, actor_static)(x))

    def q(critics: Any, x: jax.Array, action: jax.Array) -> tuple[jax.Array, ...]:
        return action_values(eqx.combine(critics, critic_static), x, action)

    def act(
        params: ActorParams, obs: jax.Array, carry: Any, draw: Noise | None
    ) -> tuple[jax.Array, Any, dict[str, jax.Array]]:
        if draw is None:
            action = means(params.actor, observe(obs_spec, obs))
            return bounds.to_environment(action), carry, {}

        def run(_: Any) -> jax.Array:
            action = means(params.actor, observe(obs_spec, obs))
            return jnp.clip(action + config.action_noise * draw.normal, -1.0, 1.0)

        action = jax.lax.cond(params.epsilon > 0, lambda _: draw.uniform, run, None)
        return bounds.to_environment(action), carry, {}

    pieces = pieces_of(config.batch_size // shards.count, micro_batch)

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
        wanted = batch.rewards + batch.discounts * bootstrap

        def loss(critics: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            found = q(critics, x, action)
            losses = [(batch.weights * jnp.square(one - wanted)).mean() for one in found]
            error = jnp.abs(jnp.stack(found) - wanted).mean(0)
            return sum(losses, jnp.zeros(())), (error, found[0].mean())

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

    def update(
        state: State, batch: Batch, key: jax.Array
    ) -> tuple[State, dict[str, jax.Array], jax.Array]:
        drawn = None
        if spread:
            rows = batch.rewards.shape[0]
            draw = shards.one_by_one(functools.partial(normals, count=rows * bounds.size))
            drawn = draw(shards.key(key), jnp.zeros((), jnp.int32), state.updates)
            drawn = drawn.reshape(rows, bounds.size)
        (loss, q_mean, grads), error = critic_grads(state, (batch, drawn))
        said = {"critic_loss": loss, "td_error": error.mean(), "q_mean": q_mean}
        grads, said = shards.each_step.mean((grads, said))
        rate = schedule(learning_rate, state.step, total_steps)
        critics, critic_optimiser, norm = critic_steps.step(
            state.critics, grads, state.critic_optimiser, rate * critic_ratio
        )
        updates = state.updates + 1
        state = state._replace(critics=critics, critic_optimiser=critic_optimiser, updates=updates)

        def improve(state: State) -> State:
            found, _ = direct((state.actor, state.critics), batch.obs)
            value, grads = shards.each_step.mean(found)
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
        metrics = said | {
            "actor_loss": state.actor_loss, "grad_norm": norm, "learning_rate": rate,
        }  # fmt: skip
        return shards.sync(state, updates), metrics, error

    return Algorithm(
        name=name,
        init=init,
        shapes=shapes_of(fresh(actor_arrays, critic_arrays)),
        noise=lambda key, env, step: step_noise(key, env, step, bounds.size),
        act=act,
        update=update,
        actor=lambda state: ActorParams(state.actor, state.epsilon),
        horizon=needs.horizon(num_envs),
        episodes=None,
        metrics=METRICS,
        replay=needs,
        advance=warm_up(config.learning_starts),
        shards=shards,
    )
