"""Advantage actor-critic (Mnih et al., 2016): policy gradient, one gradient step a trajectory.

Where acting is some versions behind, each step's gradient is weighted by how much likelier its
action has become, at most 1 (the truncated weights of Espeholt et al., 2018). Without lag that is
1.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp

from flatout.algorithms.base import Algorithm, BuildSpec, Updated, shapes_of
from flatout.algorithms.common.actor_critic import Networks, policy, value
from flatout.algorithms.common.on_policy import Batch, OnPolicy, State
from flatout.algorithms.common.optimiser import Optimiser, schedule
from flatout.algorithms.common.returns import centre, mean
from flatout.algorithms.parallel.accumulate import Losses, pieces_of, value_and_grad
from flatout.config.hyper import A2CConfig, linear
from flatout.types import Trajectory

METRICS = (
    "policy_loss", "value_loss", "entropy", "grad_norm", "explained_variance", "learning_rate",
    "updates",
)  # fmt: skip


def a2c(config: A2CConfig, spec: BuildSpec) -> Algorithm:
    """Build A2C's pure functions.

    Raises:
        UsageError: a network that does not fit the spaces.
    """
    base, shards = OnPolicy(config, spec, next_reward=config.targets == "next_reward"), spec.shards
    steps = Optimiser(base.arrays, config.optimizer, config.max_grad_norm)
    learning_rate = linear("learning_rate", config.learning_rate)

    def loss(networks: Networks, batch: Batch) -> Losses:
        networks = eqx.combine(networks, base.static)
        x, hidden = policy(networks.actor, batch.obs)
        v = value(networks, batch.obs, hidden)
        advantage = batch.advantage
        log_prob = base.dist.log_prob(x, networks.actor.extra, batch.sample)
        likelier = jnp.exp(jax.lax.stop_gradient(log_prob) - batch.log_prob)
        policy_loss = -mean(jnp.minimum(likelier, 1.0) * advantage * log_prob)
        value_loss = mean(jnp.square(batch.target - v))
        entropy = mean(base.dist.entropy(x, networks.actor.extra))
        total = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
        scalars = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        return total, (scalars, None)

    rows = config.n_steps * spec.num_envs // shards.count
    gradient = value_and_grad(loss, pieces_of(rows, spec.micro_batch), shards)

    def update(state: State, trajectory: Trajectory, key: jax.Array) -> Updated:
        state, batch = base.prepare(state, trajectory)
        rate = schedule(learning_rate, state.step, spec.total_steps)
        if config.normalize_advantage:
            centred = centre(batch.advantage, None, shards.each_step)
            batch = batch._replace(advantage=centred)
        (_, (metrics, _)), grads = gradient(state.networks, batch)
        grads, metrics = shards.each_step.mean((grads, metrics))
        networks, optimiser, norm = steps.step(state.networks, grads, state.optimiser, rate)
        state, explained = base.conclude(state, trajectory, batch)
        metrics |= {
            "grad_norm": norm, "explained_variance": explained, "learning_rate": rate,
            "updates": jnp.ones(()),
        }  # fmt: skip
        return state._replace(networks=networks, optimiser=optimiser), metrics, None

    return Algorithm(
        name="a2c",
        init=base.initial(steps.init),
        shapes=shapes_of(base.fresh(base.arrays, steps.init())),
        noise=base.dist.noise,
        act=base.act,
        update=update,
        actor=base.actor,
        horizon=config.n_steps,
        episodes=None,
        metrics=METRICS,
        shards=shards,
    )
