"""The last step of the data flow: proximal policy optimisation (Schulman et al., 2017) learns from
one trajectory. `flatout.engine.learn` calls it."""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from flatout.algorithms.base import Algorithm, BuildSpec, State, Updated
from flatout.algorithms.common.actor_critic import Networks, policy, value
from flatout.algorithms.common.distributions import Distribution
from flatout.algorithms.common.epochs import epochs
from flatout.algorithms.common.on_policy import OnPolicy, RolloutBatch
from flatout.algorithms.common.optimiser import Optimiser, schedule
from flatout.algorithms.common.returns import balanced, centre, mean
from flatout.algorithms.shards import Losses
from flatout.config.hyper import PPOConfig
from flatout.errors import UsageError
from flatout.networks.encoder import Encoder
from flatout.types import Trajectory

AVERAGED = (
    "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm",
)  # fmt: skip
METRICS = (*AVERAGED, "learning_rate", "clip_range", "updates")


def loss(
    encoder: Encoder,
    static: Networks,
    dist: Distribution,
    networks: Networks,
    batch: RolloutBatch,
    clip: jax.Array,
    hp: Any,
) -> Losses:
    """Return the clipped surrogate with value loss and entropy bonus (equations 7 and 9).

    Args:
        encoder: how observations become features.
        static: the networks without their arrays, from `equinox.partition`.
        dist: the distribution of actions.
        clip: the current clip range, epsilon of the paper.
    """
    networks = eqx.combine(networks, static)
    average = functools.partial(mean, weight=batch.weight)
    x, hidden = policy(encoder, networks.actor, batch.obs, batch.mask)
    v = value(encoder, networks, batch.obs, hidden)
    log_ratio = dist.log_prob(x, networks.actor.extra, batch.sample) - batch.log_prob
    if batch.weight is not None:  # an infinite ratio in padding would give NaN, despite weight 0
        log_ratio = jnp.where(batch.weight > 0, log_ratio, 0.0)
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
    policy_loss = -average(jnp.minimum(ratio * batch.advantage, clipped * batch.advantage))
    errors = jnp.square(batch.target - v)
    if hp.clip_range_vf is not None:
        clipped_v = batch.value + jnp.clip(v - batch.value, -hp.clip_range_vf, hp.clip_range_vf)
        # The maximum, because the clipped error alone has no gradient outside the clip range.
        errors = jnp.maximum(errors, jnp.square(batch.target - clipped_v))
    value_loss = average(errors)
    entropy = average(dist.entropy(x, networks.actor.extra))
    total = policy_loss + hp.vf_coef * value_loss - hp.ent_coef * entropy
    scalars = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approx_kl": average(ratio - 1 - log_ratio),
        "clip_fraction": average((jnp.abs(ratio - 1) > clip).astype(jnp.float32)),
    }
    return total, (scalars, None)


def ppo(config: PPOConfig, spec: BuildSpec) -> Algorithm:
    """Build PPO's pure functions.

    Raises:
        UsageError: the network does not fit the spaces, or settings exclude each other.
    """
    _check(config, spec)
    masked = config.rollout_episodes is not None or config.replay_trajectories > 1
    base, shards = OnPolicy(config, spec, masked=masked), spec.shards
    optimiser = Optimiser(base.arrays)
    losses = functools.partial(loss, base.encoder, base.static, base.dist)
    grad = spec.gradient(losses, config.batch_size)

    def update(state: State, trajectory: Trajectory, key: jax.Array, hp: Any) -> Updated:
        state, batch = base.prepare(state, trajectory, hp)
        # Schedules have their values after this trajectory, as in Stable-Baselines3.
        rate = schedule(hp.learning_rate, state.counters.step, hp.total_steps)
        clip = schedule(hp.clip_range, state.counters.step, hp.total_steps)
        factors = None  # of the learning rate, for each leaf
        if hp.critic_learning_rate is not None:
            ratio = hp.critic_learning_rate / hp.learning_rate[0]
            actor, critic = base.arrays
            factors = Networks(
                jax.tree.map(lambda _: 1.0, actor), jax.tree.map(lambda _: ratio, critic)
            )

        def minibatch(carry: Any, part: RolloutBatch) -> tuple[Any, dict[str, jax.Array]]:
            networks, opt = carry
            if config.normalize_advantage:
                centred = centre(part.advantage, part.weight, shards.each_step)
                part = part._replace(advantage=centred)
            if part.weight is not None:
                part = part._replace(weight=balanced(part.weight, shards.each_step))
            grads, metrics, _ = grad(networks, part, clip, hp)
            networks, opt, norm = optimiser.step(
                networks, grads, opt, rate, hp.max_grad_norm, factors, eps=hp.adam_eps
            )
            return (networks, opt), metrics | {"grad_norm": norm}

        proceed = None
        if hp.target_kl is not None:
            proceed = lambda metrics: metrics["approx_kl"] <= 1.5 * hp.target_kl  # noqa: E731
        (networks, opt), metrics = epochs(
            minibatch, (state.params.networks, state.opt), batch,
            metrics=AVERAGED, count=config.n_epochs, size=config.batch_size // shards.count,
            shards=shards, key=key, iteration=state.counters.updates, proceed=proceed,
        )  # fmt: skip
        metrics |= base.diagnostics(trajectory, batch, metrics["policy_loss"])
        metrics |= {"learning_rate": rate, "clip_range": clip}
        params = state.params._replace(networks=networks)
        return state._replace(params=params, opt=opt), metrics, None

    return base.algorithm("ppo", optimiser, update, METRICS, spec.horizon)


def _check(config: PPOConfig, spec: BuildSpec) -> None:
    replayed = config.replay_trajectories > 1
    if config.target_kl is not None and spec.shards.every > 1:
        raise UsageError(
            "target_kl cannot be combined with --sync every:K: the shards would stop at different "
            "updates."
        )
    if (replayed or config.rollout_episodes is not None) and spec.micro_batch is not None:
        raise UsageError(
            "micro_batch cannot be combined with rollout_episodes or replay_trajectories: padding "
            "would make some micro-batches count more than others."
        )
    if replayed and (config.normalize_observation or config.normalize_reward):
        raise UsageError(
            "replay_trajectories cannot be combined with normalize_observation or "
            "normalize_reward: their statistics would count each step several times."
        )
