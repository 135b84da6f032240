"""The running statistics by which observations are normalised. `on_policy` keeps them."""

from __future__ import annotations

import jax

from flatout import tree
from flatout.algorithms.common.returns import RunningMoments, initial_moments, update_moments
from flatout.algorithms.shards import UNSHARDED, Shards
from flatout.networks.encoder import Encoder
from flatout.types import Obs

Moments = RunningMoments | dict[str, RunningMoments] | None
"""The statistics of an observation of one array, or of several by path; None without them."""


def initial_obs_moments(encoder: Encoder) -> Moments:
    """Return statistics that have seen no observation. They scale an array by `high`, as it is
    scaled if observations are not normalised."""
    found = {
        path: initial_moments(spec.shape, spec.high or 1.0)
        for path, spec in encoder.normalised.items()
    }
    return found.get("", found)


def nothing_seen(moments: Moments) -> jax.Array:
    """Return whether statistics have seen no observation yet."""
    return tree.first(moments).total < 1.0


def update_obs_moments(
    encoder: Encoder, moments: Moments, obs: Obs, weight: jax.Array | None = None,
    shards: Shards = UNSHARDED,
) -> Moments:  # fmt: skip
    """Merge raw observations ``[B, ...]`` without a mask into the statistics; `weight` and `shards`
    are those of `update_moments`."""

    def updated(moments: RunningMoments, leaf: jax.Array) -> RunningMoments:
        return update_moments(moments, leaf, weight, shards)

    return tree.map(updated, moments, encoder.to_normalise(obs))
