"""Metrics by which a user sees that an agent cannot learn from its inputs: constant arrays, numbers
far from those before, and actions that are all the same. `run.input_checks` makes notes of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from flatout import tree
from flatout.networks.encoder import CLIP, Encoder
from flatout.types import Obs, Trajectory

CONSTANT = "constant/"
"""The beginning of the names of metrics that say whether an array of observations is constant; its
path follows."""


def diagnostic_names(encoder: Encoder, normalised: bool) -> tuple[str, ...]:
    """Return the names of the metrics that `diagnostics` returns."""
    clipped = ("clipped_inputs",) if normalised else ()
    return (*clipped, "constant_actions", *(f"{CONSTANT}{path}" for path in encoder.specs))


def diagnostics(
    encoder: Encoder, trajectory: Trajectory, normalised: Obs | None, weight: jax.Array | None
) -> dict[str, jax.Array]:
    """Return the metrics of a shard's trajectory: whether its actions, and each array of its
    observations, have the same value in all rows; of normalised inputs, the share at the clip.

    Args:
        encoder: how observations become features.
        trajectory: the trajectory.
        normalised: its prepared observations ``[T * N, ...]``; None if they are not normalised.
        weight: ``[T * N]``, 0 for a row of padding, else 1; None if there is no padding.
    """
    found = {"constant_actions": constant(rows(trajectory.actions), weight)}
    # With the observations after the last step, this is also known from one trajectory to the
    # next, and where episodes end with a trajectory.
    obs = dict(tree.items(encoder.split(rows(trajectory.obs))[0]))
    last = dict(tree.items(encoder.split(trajectory.last_obs)[0]))
    for path, leaf in obs.items():
        found[f"{CONSTANT}{path}"] = constant(leaf, weight, last[path])
    if normalised is not None:
        found["clipped_inputs"] = clipped_share(encoder, normalised, weight)
    return found


def clipped_share(encoder: Encoder, x: Obs, weight: jax.Array | None = None) -> jax.Array:
    """Return the share of normalised inputs at the clip, in prepared observations ``[B, ...]``;
    `weight` is that of `diagnostics`."""
    at_clip, count = jnp.zeros(()), jnp.zeros(())
    for path, leaf in tree.items(x):
        if path in encoder.normalised:
            each = (jnp.abs(leaf) >= CLIP).reshape(len(leaf), -1).astype(jnp.float32).sum(-1)
            kept = jnp.ones(len(leaf)) if weight is None else weight
            at_clip, count = at_clip + (each * kept).sum(), count + kept.sum() * leaf[0].size
    return at_clip / jnp.maximum(count, 1.0)


def constant(
    rows: jax.Array, weight: jax.Array | None = None, more: jax.Array | None = None
) -> jax.Array:
    """Return 1 if all rows ``[B, ...]`` are equal, else 0.

    Args:
        weight: ``[B]``, 0 for rows of padding, which may differ; the first row is none. None if
            there is no padding.
        more: further rows, none of which is padding.
    """
    same = (rows == rows[0]).reshape(len(rows), -1).all(-1)
    if weight is not None:
        same |= weight == 0
    found = same.all()
    if more is not None:
        found &= (more == rows[0]).all()
    return found.astype(jnp.float32)


def rows(obs: Obs) -> Obs:
    """Return arrays ``[T, N, ...]`` as rows ``[T * N, ...]``."""
    return tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), obs)
