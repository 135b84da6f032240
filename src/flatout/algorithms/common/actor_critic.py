"""The actor and critic of A2C, PPO and the genetic algorithm, with separate torsos or one torso."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np

from flatout.algorithms.base import BuildSpec
from flatout.algorithms.common.distributions import Distribution, masked
from flatout.networks.encoder import Encoder
from flatout.networks.layers import Linear
from flatout.networks.torsos import Torso
from flatout.types import Array, Obs


class Actor(eqx.Module):
    """A torso and a policy head; `extra` holds the log deviations ``[A]`` of Gaussians."""

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
    rng: np.random.Generator | None,
    spec: BuildSpec,
    dist: Distribution,
    log_std: float = 0.0,
    critic_hidden: tuple[int, ...] | None = None,
) -> Networks:
    """Build networks with initial parameters: zeros without `rng`.

    Actor and critic share a torso with convolutions; others are separate, and those of the critic
    may have other widths (`critic_hidden`).

    Raises:
        UsageError: the network does not fit the observations, or the critic has no hidden layers.
    """
    encoder = spec.encoder
    if critic_hidden is not None:
        encoder.refuse_critic_hidden(critic_hidden)
    torso = encoder.build(rng)
    critic_torso = None if encoder.shared else encoder.build(rng, hidden=critic_hidden)
    width = encoder.width(torso)
    critic_width = width if critic_torso is None else encoder.width(critic_torso)
    extra = np.full((dist.deviations,), log_std, np.float32)
    return Networks(
        Actor(torso, Linear(rng, width, dist.parameters, 0.01), extra),
        Critic(critic_torso, Linear(rng, critic_width, 1, 1.0)),
    )


def policy(
    encoder: Encoder, actor: Actor, x: Obs, mask: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Return head outputs ``[B, P]`` and features of prepared observations ``[B, ...]``; outputs
    that the mask ``[B, P]`` forbids are `distributions.FORBIDDEN`."""
    hidden = encoder.features(actor.torso, x)
    return masked(actor.head(hidden), mask), hidden


def value(
    encoder: Encoder, networks: Networks, x: Obs, hidden: jax.Array | None = None
) -> jax.Array:
    """Return the values ``[B]`` of prepared observations ``[B, ...]``.

    `hidden` are a shared torso's features of them, if they have been computed already.
    """
    critic = networks.critic
    if critic.torso is not None:
        hidden = encoder.features(critic.torso, x)
    elif hidden is None:
        hidden = encoder.features(networks.actor.torso, x)
    return critic.head(hidden)[:, 0]
