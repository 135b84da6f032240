"""The state of the on-policy algorithms A2C and PPO: parameters, statistics and counters."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from flatout.algorithms.base import State
from flatout.algorithms.common.actor_critic import Actor, Networks
from flatout.algorithms.common.returns import Moments, RunningMoments
from flatout.networks.memory import Carry
from flatout.types import Array


class OnPolicyActorParams(NamedTuple):
    """The parameters for acting: the actor's arrays, and the observation statistics with which it
    was published."""

    actor: Actor
    moments: Moments


class OnPolicyParams(NamedTuple):
    """The networks, and the statistics by which raw observations and rewards are normalised."""

    networks: Networks
    obs_moments: Moments
    reward_moments: RunningMoments | None


class OnPolicyCounters(NamedTuple):
    """Environment steps learned from, trajectories learned from (`updates`), each environment's
    discounted return so far (None if rewards are not normalised), and the carry of a critic with
    its own memory before the next trajectory (else None)."""

    step: Array
    updates: Array
    returns: Array | None
    critic_carry: Carry | None = None


def forget_episode(state: State, env: int) -> State:
    """Return the state with an environment's discounted return and the critic's memory of it set to
    0; see `Algorithm.forget`."""

    def forgotten(leaf: Array) -> np.ndarray:
        found = np.array(leaf)
        found[env] = 0.0
        return found

    counters = state.counters
    returns, carry = jax.tree.map(forgotten, (counters.returns, counters.critic_carry))
    return state._replace(counters=counters._replace(returns=returns, critic_carry=carry))
