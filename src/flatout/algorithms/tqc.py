"""Truncated quantile critics (Kuznetsov et al., 2020): SAC whose critics estimate distributions of
returns, of which the largest atoms are dropped from the target.

`flatout.algorithms.registry` builds it. The actor and the entropy weight are SAC's. Truncation
bootstraps, termination does not.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import Algorithm, BuildSpec
from flatout.algorithms.common.continuous import ActorCritics, Bounds
from flatout.algorithms.sac import SACParams, entropy_weight, soft_actor_critic, squashed
from flatout.algorithms.shards import Losses
from flatout.config.hyper import TQCConfig
from flatout.types import Batch, Obs


def smallest_atoms(atoms: tuple[jax.Array, ...], kept: int) -> jax.Array:
    """Return the `kept` smallest of all critics' atoms ``[B, M]`` together, in order."""
    return jnp.sort(jnp.concatenate(atoms, -1), -1)[:, :kept]


def quantile_huber(estimates: jax.Array, target: jax.Array) -> jax.Array:
    """Return the quantile Huber loss of one critic ``[B]``.

    Args:
        estimates: ``[B, M]``; estimate m is of the quantile (2 m + 1) / (2 M), m from 0.
        target: ``[B, K]``, atoms of the target distribution.
    """
    count = estimates.shape[-1]
    fractions = (2 * np.arange(count, dtype=np.float32) + 1) / (2 * count)
    error = target[:, None, :] - estimates[:, :, None]
    size = jnp.abs(error)
    huber = jnp.where(size <= 1.0, 0.5 * jnp.square(error), size - 0.5)
    return (jnp.abs(fractions[:, None] - (error < 0)) * huber).mean((-2, -1))


def critic_loss(
    kept: int, nets: ActorCritics, critics: Any, rows: tuple[Batch, jax.Array], params: SACParams,
    hp: Any,
) -> Losses:  # fmt: skip
    """Return the sum of the critics' weighted losses against the truncated target.

    Args:
        kept: the number of atoms that remain in the target.
        rows: a batch, and standard normals ``[B, A]`` for the next actions.
    """
    batch, drawn = rows
    next_action, next_log_prob = squashed(nets.outputs(params.actor, batch.next_obs), drawn)
    after = smallest_atoms(nets.atoms(params.target_critics, batch.next_obs, next_action), kept)
    soft = after - (entropy_weight(params, hp) * next_log_prob)[:, None]
    target = batch.rewards[:, None] + batch.discounts[:, None] * soft
    estimates = nets.atoms(critics, batch.obs, batch.actions)
    losses = [(batch.weights * quantile_huber(each, target)).mean() for each in estimates]
    means = jnp.stack(estimates).mean(-1)
    error = jnp.abs(means - target.mean(-1)).mean(0)
    scalars = {"td_error": error.mean(), "q_mean": means[0].mean()}
    return sum(losses, jnp.zeros(())), (scalars, error)


def mean_value(nets: ActorCritics, critics: Any, x: Obs, action: jax.Array) -> jax.Array:
    """Return the mean of all critics' atoms ``[B]``, which the actor maximises."""
    return jnp.concatenate(nets.atoms(critics, x, action), -1).mean(-1)


def tqc(config: TQCConfig, spec: BuildSpec) -> Algorithm:
    """Build TQC's pure functions.

    Raises:
        UsageError: actions are not a bounded box, or the network does not fit.
    """
    bounds, critics, atoms = Bounds(spec.action_spec, "tqc"), config.n_critics, config.n_quantiles
    nets = ActorCritics(
        spec, bounds.size, 2 * bounds.size, critics, config.critic_hidden, atoms
    )  # fmt: skip
    kept = critics * (atoms - config.top_quantiles_to_drop_per_net)
    loss = functools.partial(critic_loss, kept)
    return soft_actor_critic("tqc", config, spec, bounds, nets, loss, mean_value)
