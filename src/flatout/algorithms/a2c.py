"""Advantage actor-critic (Mnih et al., 2016): one policy-gradient step per trajectory.

`flatout.algorithms.registry` builds it. The gradient of each step is weighted by min(1, r), where r
is the probability of its action under the newest parameters, divided by that under the parameters
that acted (Espeholt et al., 2018). If both are the same, r is 1.
"""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from flatout.algorithms.base import Algorithm, BuildSpec, State, Updated
from flatout.algorithms.common.actor_critic import Networks, evaluate
from flatout.algorithms.common.distributions import Distribution
from flatout.algorithms.common.on_policy import OnPolicy
from flatout.algorithms.common.optimiser import Optimiser, schedule
from flatout.algorithms.common.returns import (
    centre,
    generalised_advantages,
    mean,
    next_reward_advantages,
)
from flatout.algorithms.common.rollout_batch import RolloutBatch
from flatout.algorithms.shards import Losses
from flatout.config.hyper import A2CConfig
from flatout.networks.encoder import Encoder
from flatout.types import Trajectory

METRICS = ("policy_loss", "value_loss", "entropy", "grad_norm", "learning_rate", "updates")


def loss(
    encoder: Encoder, static: Networks, dist: Distribution, networks: Networks,
    batch: RolloutBatch, hp: Any,
) -> Losses:  # fmt: skip
    """Return the policy-gradient loss with value loss and entropy bonus (Mnih et al., 2016,
    algorithm S3).

    Args:
        encoder: how observations become features.
        static: the networks without their arrays, from `equinox.partition`.
        dist: the distribution of actions.
    """
    networks = eqx.combine(networks, static)
    x, v = evaluate(encoder, networks, batch.obs, batch.mask, batch.memory)
    log_prob = dist.log_prob(x, networks.actor.extra, batch.sample)
    ratio = jnp.exp(jax.lax.stop_gradient(log_prob) - batch.log_prob)
    policy_loss = -mean(jnp.minimum(ratio, 1.0) * batch.advantage * log_prob)
    value_loss = mean(jnp.square(batch.target - v))
    entropy = mean(dist.entropy(x, networks.actor.extra))
    total = policy_loss + hp.vf_coef * value_loss - hp.ent_coef * entropy
    scalars = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
    return total, (scalars, None)


def a2c(config: A2CConfig, spec: BuildSpec) -> Algorithm:
    """Build A2C's pure functions.

    Raises:
        UsageError: the network does not fit the spaces.
    """
    next_reward = config.targets == "next_reward"
    advantages = next_reward_advantages if next_reward else generalised_advantages
    shards = spec.shards
    base = OnPolicy(config, spec, advantages=advantages, length=config.n_steps)
    optimiser = Optimiser(base.arrays, config.optimizer)
    rows = config.n_steps * spec.num_envs
    grad = spec.gradient(functools.partial(loss, base.encoder, base.static, base.dist), rows)

    def update(state: State, trajectory: Trajectory, key: jax.Array, hp: Any) -> Updated:
        state, batch = base.prepare(state, trajectory, hp)
        rate = schedule(hp.learning_rate, state.counters.step, hp.total_steps)
        if config.normalize_advantage:
            centred = centre(batch.advantage, None, shards.each_step)
            batch = batch._replace(advantage=centred)
        grads, metrics, _ = grad(state.params.networks, batch, hp)
        del metrics["loss"]  # the total of the three losses above
        networks, opt, norm = optimiser.step(
            state.params.networks, grads, state.opt, rate, hp.max_grad_norm
        )
        metrics |= base.diagnostics(trajectory, batch)
        metrics |= {"grad_norm": norm, "learning_rate": rate, "updates": jnp.ones(())}
        params = state.params._replace(networks=networks)
        return state._replace(params=params, opt=opt), metrics, None

    return base.algorithm("a2c", optimiser, update, METRICS, config.n_steps)
