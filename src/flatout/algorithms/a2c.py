"""Advantage actor-critic (Mnih et al., 2016): policy gradient, one gradient step a trajectory.

Where acting is some versions behind, each step's gradient is weighted by how much likelier its
action has become, at most 1 (the truncated weights of Espeholt et al., 2018). Without lag that is
1.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp

from flatout.algorithms.base import Algorithm, shapes_of
from flatout.algorithms.common.actor_critic import Networks, policy, value
from flatout.algorithms.common.on_policy import Batch, OnPolicy, State
from flatout.algorithms.common.optimiser import Optimiser, schedule
from flatout.algorithms.common.returns import centre, mean
from flatout.algorithms.parallel.accumulate import pieces_of, value_and_grad
from flatout.algorithms.parallel.shards import UNSHARDED, Shards
from flatout.config.hyper import A2CConfig, linear
from flatout.config.schema import NetworkConfig
from flatout.networks.torsos import Network
from flatout.types import ActionSpec, ObservationSpec, Trajectory

METRICS = (
    "policy_loss", "value_loss", "entropy", "grad_norm", "explained_variance", "learning_rate",
    "updates",
)  # fmt: skip


def a2c(
    config: A2CConfig,
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
    """Build A2C's pure functions.

    Args:
        config: hyper-parameters.
        network_config: the torso's settings.
        obs_spec: one environment's observation.
        action_spec: one environment's action.
        num_envs: N.
        total_steps: environment steps of the whole run, over which linear schedules run.
        network: a custom torso, or None for the configured one.
        shards: the logical shards of each update.
        micro_batch: rows of a shard whose gradient is computed at once; None for all.

    Raises:
        UsageError: a network that does not fit the spaces.
    """
    base = OnPolicy(
        config, network_config, obs_spec, action_spec, num_envs=num_envs, masked=False,
        network=network, next_reward=config.targets == "next_reward", shards=shards,
    )  # fmt: skip
    steps = Optimiser(base.arrays, config.optimizer, config.max_grad_norm)
    learning_rate = linear("learning_rate", config.learning_rate)

    def loss(
        networks: Networks, batch: Batch
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], None]]:
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
        said = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        return total, (said, None)

    rows = config.n_steps * num_envs // shards.count
    gradient = value_and_grad(loss, pieces_of(rows, micro_batch), shards)

    def update(
        state: State, trajectory: Trajectory, key: jax.Array
    ) -> tuple[State, dict[str, jax.Array], None]:
        state, batch = base.prepare(state, trajectory)
        rate = schedule(learning_rate, state.step, total_steps)
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
