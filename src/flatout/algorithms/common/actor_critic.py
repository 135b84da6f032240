"""An actor and a critic, with a torso each or one between them."""

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
    """Torso and policy head; `extra` holds a Gaussian's log deviations ``[A]`` (else empty)."""

    torso: Torso
    head: Linear
    extra: Array


class Critic(eqx.Module):
    """Value head, with a torso where it does not share the actor's."""

    torso: Torso | None
    head: Linear


class Networks(NamedTuple):
    """What gradients change."""

    actor: Actor
    critic: Critic


def build_networks(
    rng: np.random.Generator | None, spec: BuildSpec, dist: Distribution, log_std: float | None
) -> Networks:
    """Fresh networks; image torsos are shared between actor and critic, vector torsos not."""
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
    """The head's outputs ``[B, P]`` for prepared observations ``[B, ...]``, and the features."""
    hidden = over_batch(actor.torso, x)
    return actor.head(hidden), hidden


def value(networks: Networks, x: jax.Array, hidden: jax.Array | None = None) -> jax.Array:
    """Values ``[B]`` of prepared observations ``[B, ...]``; a shared torso's features of them
    (`hidden`) may have been computed already."""
    critic = networks.critic
    if critic.torso is not None:
        hidden = over_batch(critic.torso, x)
    elif hidden is None:
        hidden = over_batch(networks.actor.torso, x)
    return critic.head(hidden)[:, 0]
