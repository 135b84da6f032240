"""The actor and critic of A2C, PPO and the genetic algorithm, with separate torsos or one torso."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from flatout.algorithms.base import BuildSpec
from flatout.algorithms.common.distributions import Distribution, masked
from flatout.config.hyper import OnPolicyConfig
from flatout.errors import UsageError
from flatout.networks.encoder import Encoder
from flatout.networks.layers import Linear
from flatout.networks.memory import CELLS, Carry, Cell, remember_rows, step
from flatout.networks.torsos import Torso
from flatout.types import Array, Obs


class Actor(eqx.Module):
    """A torso and a policy head; `extra` holds the log deviations ``[A]`` of Gaussians. A recurrent
    policy has a cell between torso and head."""

    torso: Torso
    head: Linear
    extra: Array
    cell: Cell | None = None


class Critic(eqx.Module):
    """A value head, with its own torso unless it shares the actor's (then None). With a recurrent
    policy it reads the output of its own cell, or of the actor's if it has none."""

    torso: Torso | None
    head: Linear
    cell: Cell | None = None


class Networks(NamedTuple):
    """The actor and the critic, which gradients change."""

    actor: Actor
    critic: Critic


class Memory(NamedTuple):
    """Where the memory of recurrent networks begins in B sequences of L rows.

    Attributes:
        actor, critic: the carries before the first rows; the critic's is None if it has no cell.
        begins: ``[B, L]`` bool, the rows with which an episode begins.
    """

    actor: Carry
    critic: Carry | None
    begins: Array


def build_networks(
    rng: np.random.Generator | None,
    spec: BuildSpec,
    dist: Distribution,
    log_std: float = 0.0,
    config: OnPolicyConfig | None = None,
) -> Networks:
    """Build networks with initial parameters: zeros without `rng`.

    Actor and critic share a torso with convolutions, and one whose memory they share; others are
    separate, and those of the critic may have other widths (`critic_hidden`).

    Raises:
        UsageError: the network does not fit the observations, or the critic has no hidden layers.
    """
    encoder, config = spec.encoder, config or OnPolicyConfig()
    shared_memory = config.recurrent is not None and config.critic_memory == "shared"
    if config.critic_hidden is not None:
        encoder.refuse_critic_hidden(config.critic_hidden)
        if shared_memory:
            raise UsageError(
                f"critic_hidden = {config.critic_hidden} is impossible: the critic reads the "
                "actor's memory and has no hidden layers; leave it out, or set critic_memory = own."
            )
    torso = encoder.build(rng)
    shared = encoder.shared or shared_memory
    critic_torso = None if shared else encoder.build(rng, hidden=config.critic_hidden)
    width = encoder.width(torso)
    critic_width = width if critic_torso is None else encoder.width(critic_torso)
    cell = critic_cell = None
    if config.recurrent is not None:
        make, size = CELLS[config.recurrent], config.recurrent_size
        cell = make(rng, width, size)
        critic_cell = None if shared_memory else make(rng, critic_width, size)
        width = critic_width = size
    extra = np.full((dist.deviations,), log_std, np.float32)
    return Networks(
        Actor(torso, Linear(rng, width, dist.parameters, 0.01), extra, cell),
        Critic(critic_torso, Linear(rng, critic_width, 1, 1.0), critic_cell),
    )


def policy(
    encoder: Encoder, actor: Actor, x: Obs, mask: jax.Array | None = None, carry: Any = ()
) -> tuple[jax.Array, Any]:
    """Return the head's outputs ``[B, P]`` for the prepared observations ``[B, ...]`` of one step,
    and the carry after it; outputs that the mask ``[B, P]`` forbids are `distributions.FORBIDDEN`.
    """
    hidden = encoder.features(actor.torso, x)
    if actor.cell is not None:
        carry = step(actor.cell, hidden, carry)
        hidden = carry[0]
    return masked(actor.head(hidden), mask), carry


class ActorOutputs(NamedTuple):
    """The policy head's outputs ``[B, P]``, what the head read, and the torso's features."""

    head: jax.Array
    hidden: jax.Array
    features: jax.Array


def actor_outputs(
    encoder: Encoder, actor: Actor, x: Obs, mask: jax.Array | None, memory: Memory | None
) -> ActorOutputs:
    """Return the policy's outputs for prepared observations ``[B, ...]``, which are the rows of
    sequences if the networks are recurrent; arguments as in `evaluate`."""
    features = hidden = encoder.features(actor.torso, x)
    if actor.cell is not None:
        assert memory is not None
        hidden = remember_rows(actor.cell, features, memory.actor, memory.begins)
    return ActorOutputs(masked(actor.head(hidden), mask), hidden, features)


def evaluate(
    encoder: Encoder, networks: Networks, x: Obs, mask: jax.Array | None = None,
    memory: Memory | None = None,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Return the policy head's outputs ``[B, P]`` and the values ``[B]`` of prepared observations
    ``[B, ...]``.

    Args:
        mask: the allowed outputs ``[B, P]``; the others are `distributions.FORBIDDEN`.
        memory: that of recurrent networks. The rows are then one sequence after another.
    """
    critic = networks.critic
    outputs, hidden, features = actor_outputs(encoder, networks.actor, x, mask, memory)
    if critic.torso is not None:
        features = hidden = encoder.features(critic.torso, x)
    if critic.cell is not None:
        assert memory is not None
        assert memory.critic is not None
        hidden = remember_rows(critic.cell, features, memory.critic, memory.begins)
    return outputs, critic.head(hidden)[:, 0]


def value(encoder: Encoder, networks: Networks, x: Obs) -> jax.Array:
    """Return the values ``[B]`` of prepared observations ``[B, ...]``, of networks without
    memory."""
    torso = networks.actor.torso if networks.critic.torso is None else networks.critic.torso
    return networks.critic.head(encoder.features(torso, x))[:, 0]
