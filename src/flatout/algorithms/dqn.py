"""Deep Q-learning (Mnih et al., 2015); double, dueling, n-step and prioritised as options.

Truncation bootstraps, termination does not. A lost life counts as a terminal where the
environment is told to say so; its frames go on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from flatout.algorithms.base import Acted, Algorithm, BuildSpec, Updated, replay_spec, shapes_of
from flatout.algorithms.common.continuous import observe
from flatout.algorithms.common.optimiser import Optimiser, polyak, schedule
from flatout.algorithms.common.randomness import uniforms
from flatout.algorithms.parallel.accumulate import Losses, pieces_of, value_and_grad
from flatout.config.hyper import DQNConfig, linear
from flatout.errors import UsageError
from flatout.networks.layers import Draw, FanIn, Linear
from flatout.networks.torsos import Torso, features, make_torso, over_batch
from flatout.types import Array, Batch, DiscreteSpec

METRICS = ("loss", "td_error", "q_max", "grad_norm", "learning_rate")


class QNetwork(eqx.Module):
    """Action values ``[B, actions]`` of observations; with `baseline` a dueling network."""

    torso: Torso
    head: Linear
    baseline: Linear | None

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = over_batch(self.torso, x)
        q = self.head(hidden)
        if self.baseline is None:
            return q
        return self.baseline(hidden) + q - q.mean(-1, keepdims=True)


class ActorParams(NamedTuple):
    """What acting needs: the online network and the probability of a random action."""

    network: QNetwork
    epsilon: Array


class State(NamedTuple):
    """Everything that learning changes; `step` counts environment steps (int32)."""

    network: QNetwork
    target: QNetwork
    optimiser: Any
    epsilon: Array
    step: Array
    updates: Array


class Noise(NamedTuple):
    """One step's draws: whether to explore (uniform), and with which action."""

    explore: Array
    action: Array


def dqn(config: DQNConfig, spec: BuildSpec) -> Algorithm:
    """Build DQN's pure functions.

    Raises:
        UsageError: continuous actions, or a network that does not fit.
    """
    if not isinstance(spec.action_spec, DiscreteSpec):
        raise UsageError("dqn needs Discrete actions; use sac, td3, ddpg or ppo for a Box.")
    actions = spec.action_spec.n
    replay, shards, obs_spec = replay_spec(config, spec.total_steps), spec.shards, spec.obs_spec
    learning_rate = linear("learning_rate", config.learning_rate)
    fall = config.exploration_steps
    fall = config.exploration_fraction * spec.total_steps if fall is None else fall
    interval = config.target_update_interval
    first = 1.0 if config.learning_starts else config.exploration_initial_eps

    def build(draw: Draw) -> QNetwork:
        torso = make_torso(draw, obs_spec, spec.network_config, spec.network)
        width = features(torso, obs_spec)
        baseline = Linear(draw, width, 1, 1.0) if config.dueling else None
        return QNetwork(torso, Linear(draw, width, actions, 1.0), baseline)

    arrays, static = eqx.partition(build(FanIn(None)), eqx.is_array)
    steps = Optimiser(arrays, config.optimizer, config.max_grad_norm)

    def init(key: np.ndarray) -> State:
        return fresh(eqx.filter(build(FanIn(np.random.default_rng(key))), eqx.is_array))

    def fresh(online: QNetwork) -> State:
        online = jax.tree.map(np.asarray, online)
        return State(
            network=online,
            target=jax.tree.map(np.copy, online),
            optimiser=steps.init(),
            epsilon=np.asarray(first, np.float32),
            step=np.zeros((), np.int32),
            updates=np.zeros((), np.int32),
        )

    def values(online: QNetwork, obs: jax.Array) -> jax.Array:
        return eqx.combine(online, static)(observe(obs_spec, obs))

    def noise(key: jax.Array, env: jax.Array, step: jax.Array) -> Noise:
        drawn = uniforms(key, env, step, 2)
        return Noise(drawn[0], jnp.floor(drawn[1] * actions).astype(jnp.int32))

    def act(params: ActorParams, obs: jax.Array, carry: Any, draw: Noise | None) -> Acted:
        if draw is None:
            q = values(params.network, obs)
            return q.argmax(-1).astype(jnp.int32), carry, {"q_max": q.max(-1)}
        explore = draw.explore < params.epsilon

        def run(_: Any) -> tuple[jax.Array, jax.Array]:
            q = values(params.network, obs)
            chosen = jnp.where(explore, draw.action, q.argmax(-1).astype(jnp.int32))
            return chosen, q.max(-1)

        def skip(_: Any) -> tuple[jax.Array, jax.Array]:  # nobody would listen to the network
            return draw.action, jnp.full(explore.shape, jnp.nan, jnp.float32)

        action, q_max = jax.lax.cond(explore.all(), skip, run, None)
        return action, carry, {"q_max": q_max}

    def advance(state: State, taken: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        step = state.step + taken
        done = jnp.clip(step / jnp.maximum(fall, 1), 0.0, 1.0)
        start, end = config.exploration_initial_eps, config.exploration_final_eps
        epsilon = jnp.where(step < config.learning_starts, 1.0, start + (end - start) * done)
        epsilon = epsilon.astype(jnp.float32)
        # As many moves as intervals were crossed; the online network is the same for all of them.
        moves = step // interval - state.step // interval
        share = 1.0 if config.tau == 1.0 else 1.0 - (1.0 - config.tau) ** moves
        target = jax.lax.cond(
            moves > 0, lambda: polyak(state.target, state.network, share), lambda: state.target
        )
        return state._replace(target=target, epsilon=epsilon, step=step), {"epsilon": epsilon}

    def loss(online: QNetwork, rows: tuple[jax.Array, ...]) -> Losses:
        obs, chosen, target, weights = rows
        q = values(online, obs)
        error = (q * jax.nn.one_hot(chosen, actions)).sum(-1) - target
        each = optax.huber_loss(error) if config.loss == "huber" else jnp.square(error)
        return (weights * each).mean(), (q.max(-1).mean(), error)

    pieces = pieces_of(config.batch_size // shards.count, spec.micro_batch)
    gradient = value_and_grad(loss, pieces, shards)

    @shards.one_by_one
    def targets(state: State, batch: Batch) -> jax.Array:
        """What the values of the chosen actions are moved towards, ``[B]``."""
        q_next = values(state.target, batch.next_obs)
        if config.double:
            best = values(state.network, batch.next_obs).argmax(-1)
            bootstrap = jnp.take_along_axis(q_next, best[:, None], -1)[:, 0]
        else:
            bootstrap = q_next.max(-1)
        return batch.rewards + batch.discounts * bootstrap

    def update(state: State, batch: Batch, key: jax.Array) -> Updated:
        rows = (batch.obs, batch.actions, targets(state, batch), batch.weights)
        (total, (q_max, error)), grads = gradient(state.network, rows)
        error = jnp.abs(error)
        scalars = {"loss": total, "td_error": error.mean(), "q_max": q_max}
        grads, scalars = shards.each_step.mean((grads, scalars))
        rate = schedule(learning_rate, state.step, spec.total_steps)
        online, optimiser, norm = steps.step(state.network, grads, state.optimiser, rate)
        metrics = scalars | {"grad_norm": norm, "learning_rate": rate}
        updates = state.updates + 1
        online, optimiser = shards.sync((online, optimiser), updates)
        return state._replace(network=online, optimiser=optimiser, updates=updates), metrics, error

    return Algorithm(
        name="dqn",
        init=init,
        shapes=shapes_of(fresh(arrays)),
        noise=noise,
        act=act,
        update=update,
        actor=lambda state: ActorParams(state.network, state.epsilon),
        horizon=replay.horizon(spec.num_envs),
        episodes=None,
        metrics=METRICS,
        replay=replay,
        advance=advance,
        advanced=("epsilon",),
        shards=shards,
    )
