"""The actor and critic of A2C, PPO and the genetic algorithm, with separate torsos or one torso."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np

from flatout.algorithms.base import BuildSpec
from flatout.algorithms.common.distributions import Distribution
from flatout.networks.layers import Linear
from flatout.networks.torsos import Torso, features, make_torso, over_batch
from flatout.types import Array


class Actor(eqx.Module):
    """A torso and a policy head; `extra` holds a Gaussian's log deviations ``[A]`` (else empty)."""

    torso: Torso
    head: Linear
    extra: Array


class Critic(eqx.Module):
    """A value head, with its own torso unless it shares the actor's (then None)."""

    torso: Torso | None
    head: Linear


class Networks(NamedTuple):
    """The actor and the critic, which gradients change."""

    actor: Actor
    critic: Critic


def build_networks(
    rng: np.random.Generator | None, spec: BuildSpec, dist: Distribution, log_std: float | None
) -> Networks:
    """Build networks with initial parameters: zeros without `rng`.

    Actor and critic share an image torso, unless it is an MLP, and have separate vector torsos.
    """
    obs_spec, config = spec.obs_spec, spec.network_config
    torso = make_torso(rng, obs_spec, config, spec.network)
    shared = obs_spec.is_image and config.network != "mlp"
    critic_torso = None if shared else make_torso(rng, obs_spec, config, spec.network)
    width = features(torso, obs_spec)
    size = 0 if log_std is None else dist.parameters
    extra = np.full((size,), log_std or 0.0, np.float32)
    return Networks(
        Actor(torso, Linear(rng, width, dist.parameters, 0.01), extra),
        Critic(critic_torso, Linear(rng, width, 1, 1.0)),
    )


def policy(actor: Actor, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return head outputs ``[B, P]`` and features of prepared observations ``[B, ...]``."""
    hidden = over_batch(actor.torso, x)
    return actor.head(hidden), hidden


def value(networks: Networks, x: jax.Array, hidden: jax.Array | None = None) -> jax.Array:
    """Return the values ``[B]`` of prepared observations ``[B, ...]``.

    `hidden` are a shared torso's features of them, if they have been computed already.
    """
    critic = networks.critic
    if critic.torso is not None:
        hidden = over_batch(critic.torso, x)
    elif hidden is None:
        hidden = over_batch(networks.actor.torso, x)
    return critic.head(hidden)[:, 0]
