"""Deep Q-learning (Mnih et al., 2015); double, dueling, n-step and prioritised DQN are options.

`flatout.algorithms.registry` builds it. Truncation bootstraps, termination does not. If the
environment is set to report a lost life as terminal, there is no bootstrap after it, although the
episode continues.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from flatout.algorithms.base import Acted, Algorithm, BuildSpec, State, Updated, replay_spec
from flatout.algorithms.common.distributions import FORBIDDEN, drawn, masked
from flatout.algorithms.common.optimiser import Optimiser, polyak, schedule
from flatout.algorithms.hp import hyper_parameters
from flatout.algorithms.shards import Losses
from flatout.config.actions import refuse_actions
from flatout.config.hyper import DQNConfig
from flatout.networks.layers import Draw, FanIn, Linear
from flatout.networks.torsos import Torso
from flatout.randomness import uniforms
from flatout.types import Array, Batch, DiscreteSpec, Obs, mask_path

VALUED_EVERY = 8
"""The network runs at least at every 8th step, even while every action is random, so that the mean
of max Q over an episode (`q_max`) can be reported."""

METRICS = ("loss", "td_error", "q_max", "grad_norm", "learning_rate")


class QNetwork(eqx.Module):
    """A network of action values ``[B, actions]``; with `baseline` it is a dueling network."""

    torso: Torso
    head: Linear
    baseline: Linear | None

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Return the values for the torso's features ``[B, F]``."""
        q = self.head(hidden)
        if self.baseline is None:
            return q
        return self.baseline(hidden) + q - q.mean(-1, keepdims=True)


class DQNActorParams(NamedTuple):
    """The parameters for acting: the online network and the probability of a random action."""

    network: QNetwork
    epsilon: Array


class DQNParams(NamedTuple):
    """The online network, and the target network that follows it."""

    network: QNetwork
    target: QNetwork


class DQNCounters(NamedTuple):
    """Environment steps and updates (int32), and the current probability of a random action. This
    probability is saved, so that a loaded agent explores as much as when it was saved."""

    step: Array
    updates: Array
    epsilon: Array


class Noise(NamedTuple):
    """One step's noise: a uniform number that decides whether to explore; the random action, or the
    uniform number that chooses one if actions are masked; and whether the network runs even if
    every action is random (bool; see `VALUED_EVERY`)."""

    explore: Array
    action: Array
    valued: Array


Values = Callable[[QNetwork, Obs], jax.Array]
"""``(network, raw observations [B, ...]) -> action values [B, actions]``, `FORBIDDEN` for those
that the observation's mask forbids."""


def loss(
    values: Values, huber: bool, online: QNetwork, rows: tuple[Batch, jax.Array], hp: Any
) -> Losses:
    """Return the loss of the chosen actions' temporal differences, squared or Huber (equation 2).

    Args:
        huber: whether the loss is quadratic up to 1 and linear beyond.
        rows: a batch, and the targets of its values, ``[B]``.
    """
    batch, target = rows
    q = values(online, batch.obs)
    # A one-hot product, not a gather: its gradient is a product too.
    error = (q * jax.nn.one_hot(batch.actions, q.shape[-1])).sum(-1) - target
    each = optax.huber_loss(error) if huber else jnp.square(error)
    size = jnp.abs(error)
    scalars = {"td_error": size.mean(), "q_max": q.max(-1).mean()}
    return (batch.weights * each).mean(), (scalars, size)


def targets(
    values: Values, double: bool, has_mask: bool, params: DQNParams, batch: Batch
) -> jax.Array:
    """Return the bootstrapped targets of the chosen actions' values, ``[B]``."""
    q_next = values(params.target, batch.next_obs)
    if double:  # van Hasselt et al., 2016, equation 4
        best = values(params.network, batch.next_obs).argmax(-1)
        bootstrap = jnp.take_along_axis(q_next, best[:, None], -1)[:, 0]
    else:
        bootstrap = q_next.max(-1)
    if has_mask:  # nothing follows an observation that allows no action, as in a finished game
        bootstrap = jnp.where(bootstrap > FORBIDDEN, bootstrap, 0.0)
    return batch.rewards + batch.discounts * bootstrap


def dqn(config: DQNConfig, spec: BuildSpec) -> Algorithm:
    """Build DQN's pure functions.

    Raises:
        UsageError: actions are continuous, or the network does not fit.
    """
    refuse_actions("dqn", spec.action_spec)
    assert isinstance(spec.action_spec, DiscreteSpec)
    actions, encoder = spec.action_spec.n, spec.encoder
    replay, shards = replay_spec(config, spec.total_steps), spec.shards
    has_mask = bool(mask_path(spec.obs_spec))

    def build(draw: Draw) -> QNetwork:
        torso = encoder.build(draw)
        width = encoder.width(torso)
        baseline = Linear(draw, width, 1, 1.0) if config.dueling else None
        return QNetwork(torso, Linear(draw, width, actions, 1.0), baseline)

    arrays, static = eqx.partition(build(FanIn(None)), eqx.is_array)
    optimiser = Optimiser(arrays, config.optimizer)

    def init(key: np.ndarray, hp: Any) -> State:
        online = eqx.filter(build(FanIn(np.random.default_rng(key))), eqx.is_array)
        online = jax.tree.map(np.asarray, online)
        first = np.float32(1.0) if config.learning_starts else hp.exploration_initial_eps
        counters = DQNCounters(np.zeros((), np.int32), np.zeros((), np.int32), np.array(first))
        params = DQNParams(online, jax.tree.map(np.copy, online))
        return State(params, optimiser.init(), counters)

    def values(online: QNetwork, obs: Obs) -> jax.Array:
        network = eqx.combine(online, static)
        obs, mask = encoder.allowed(obs)
        return masked(network(encoder.features(network.torso, encoder.prepare(obs))), mask)

    def noise(key: jax.Array, env: jax.Array, step: jax.Array) -> Noise:
        explore, random = uniforms(key, env, step, 2)
        if not has_mask:
            random = jnp.floor(random * actions).astype(jnp.int32)
        return Noise(explore, random, step % VALUED_EVERY == 0)

    def random_actions(draw: Noise, obs: Obs) -> jax.Array:
        _, mask = encoder.allowed(obs)
        return draw.action if mask is None else drawn(draw.action, mask)

    def epsilon(step: jax.Array, hp: Any) -> jax.Array:
        """Return the probability of a random action at an environment step."""
        decay_steps = config.exploration_steps
        decay_steps = (
            hp.exploration_fraction * hp.total_steps if decay_steps is None else decay_steps
        )
        done = jnp.clip(step / jnp.maximum(decay_steps, 1), 0.0, 1.0)
        start, end = hp.exploration_initial_eps, hp.exploration_final_eps
        return jnp.where(step < config.learning_starts, 1.0, start + (end - start) * done)

    def act(params: DQNActorParams, obs: Obs, carry: Any, draw: Noise | None) -> Acted:
        if draw is None:
            q = values(params.network, obs)
            return q.argmax(-1).astype(jnp.int32), carry, {"q_max": q.max(-1)}
        explore, random = draw.explore < params.epsilon, random_actions(draw, obs)

        def run(_: Any) -> tuple[jax.Array, jax.Array]:
            q = values(params.network, obs)
            chosen = jnp.where(explore, random, q.argmax(-1).astype(jnp.int32))
            return chosen, q.max(-1)

        def skip(_: Any) -> tuple[jax.Array, jax.Array]:  # nothing uses the network
            return random, jnp.full(explore.shape, jnp.nan, jnp.float32)

        action, q_max = jax.lax.cond(explore.all() & ~draw.valued.any(), skip, run, None)
        return action, carry, {"q_max": q_max}

    def advance(state: State, steps: jax.Array, hp: Any) -> tuple[State, dict[str, jax.Array]]:
        (network, target), counters = state.params, state.counters
        step = counters.step + steps
        counters = counters._replace(step=step, epsilon=epsilon(step, hp))
        # If several intervals end within `steps`, the target makes one larger move for all of them.
        interval = config.target_update_interval
        moves = step // interval - state.counters.step // interval
        share = 1.0 - (1.0 - hp.tau) ** moves
        target = jax.lax.cond(moves > 0, lambda: polyak(target, network, share), lambda: target)
        state = State(DQNParams(network, target), state.opt, counters)
        return state, {"epsilon": counters.epsilon}

    td_target = shards.one_by_one(functools.partial(targets, values, config.double, has_mask))
    grad = spec.gradient(functools.partial(loss, values, config.loss == "huber"), config.batch_size)

    def update(state: State, batch: Batch, key: jax.Array, hp: Any) -> Updated:
        params, counters = state.params, state.counters
        grads, metrics, error = grad(params.network, (batch, td_target(params, batch)), hp)
        rate = schedule(hp.learning_rate, counters.step, hp.total_steps)
        network, opt, norm = optimiser.step(
            params.network, grads, state.opt, rate, hp.max_grad_norm
        )
        counters = counters._replace(updates=counters.updates + 1)
        network, opt = shards.sync((network, opt), counters.updates)
        metrics |= {"grad_norm": norm, "learning_rate": rate}
        return State(params._replace(network=network), opt, counters), metrics, error

    return Algorithm(
        name="dqn",
        hp=hyper_parameters(config, spec.total_steps),
        init=init,
        act=act,
        update=update,
        metrics=METRICS,
        horizon=replay.horizon(spec.num_envs),
        noise=noise,
        actor=lambda state, hp: DQNActorParams(state.params.network, state.counters.epsilon),
        replay=replay,
        advance=advance,
        advanced=("epsilon",),
        shards=shards,
    )
