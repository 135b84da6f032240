"""Advantages, values around steps, and running statistics for on-policy algorithms.

Subscripts are those of the papers: ``r_t``, ``v_t``, ``v_tp1`` (t plus 1).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout import tree
from flatout.algorithms.shards import UNSHARDED, Shards
from flatout.networks.encoder import Encoder
from flatout.types import Array, Obs, Trajectory

Pair = tuple[jax.Array, jax.Array]


def generalised_advantages(
    r_t: jax.Array, v_t: jax.Array, v_tp1: jax.Array, terminated_t: jax.Array, done_t: jax.Array,
    hp: Any,
) -> jax.Array:  # fmt: skip
    """Return generalised advantage estimates (Schulman et al., 2016, equation 16).

    Args:
        r_t: rewards ``[T, N]`` for steps t in [0, T).
        v_t: values ``[T, N]`` of the observations before each step.
        v_tp1: values ``[T, N]`` of the observations after each step; at a truncation, that of the
            episode's final observation.
        terminated_t: ``[T, N]`` bool; the value after the step is 0.
        done_t: ``[T, N]`` bool; the sum over later steps stops here (terminated or truncated).
        hp: holds `gamma` and `gae_lambda`.

    Returns:
        Advantages ``[T, N]``.
    """
    delta_t = r_t + hp.gamma * jnp.where(terminated_t, 0.0, v_tp1) - v_t
    decay_t = hp.gamma * hp.gae_lambda * (1.0 - done_t.astype(r_t.dtype))

    def backward(a_tp1: jax.Array, at_t: Pair) -> Pair:
        delta, decay = at_t
        a_t = delta + decay * a_tp1
        return a_t, a_t

    start = jnp.zeros_like(delta_t[0])
    return jax.lax.scan(backward, start, (delta_t, decay_t), reverse=True)[1]


def next_reward_advantages(
    r_t: jax.Array, v_t: jax.Array, v_tp1: jax.Array, terminated_t: jax.Array, done_t: jax.Array,
    hp: Any,
) -> jax.Array:  # fmt: skip
    """Return targets minus values; the target is 1 if a reward follows in the episode, else 0.

    Values are probabilities of a reward here. If the trajectory or a time limit cuts an episode,
    the value after the cut stands for the rest of it. Arguments as in `generalised_advantages`.
    """
    after = jnp.where(terminated_t, 0.0, jnp.clip(v_tp1, 0.0, 1.0))

    def backward(target_tp1: jax.Array, at_t: tuple[jax.Array, jax.Array, jax.Array]) -> Pair:
        r, unknown, done = at_t
        target = jnp.where(r > 0, 1.0, jnp.where(done, unknown, target_tp1))
        return target, target

    return jax.lax.scan(backward, after[-1], (r_t, after, done_t), reverse=True)[1] - v_t


class RunningMoments(NamedTuple):
    """Mean and variance per component ``[...]`` of all values so far, and their number `total`."""

    mean: Array
    var: Array
    total: Array


def initial_moments(shape: tuple[int, ...], deviation: float = 1.0) -> RunningMoments:
    """Return mean 0 and a deviation with a count of 1e-30, so that the first batch replaces them.
    With the usual count, 1e-4, they would widen the variance of values far from 0."""
    zeros, var = np.zeros(shape, np.float32), np.full(shape, deviation**2, np.float32)
    return RunningMoments(zeros, var, np.asarray(1e-30, np.float32))


LONGEST = 2**20
"""Batches that the moments remember at most. With more, a batch would weigh less than float32 can
add: the count would stop growing, and the variance would not."""


def update_moments(
    moments: RunningMoments,
    batch: jax.Array,
    weight: jax.Array | None = None,
    shards: Shards = UNSHARDED,
) -> RunningMoments:
    """Merge ``batch [B, ...]`` into the moments (Chan et al., 1979, parallel variance). After
    `LONGEST` batches, a batch weighs as much as the last of them did.

    Args:
        moments: the moments so far.
        batch: new values; the first axis is averaged.
        weight: ``[B]``, 0 for a row of padding, else 1; None if there is no padding.
        shards: the shards whose batches are merged together.
    """
    count, mean, var = _moments(batch, weight, shards)
    before = jnp.minimum(moments.total, float(LONGEST * len(batch) * shards.count))
    total = before + count
    delta = mean - moments.mean
    squares = moments.var * before + var * count + jnp.square(delta) * before * count / total
    return RunningMoments(moments.mean + delta * count / total, squares / total, total)


def discounted_returns(
    g: jax.Array, r_t: jax.Array, done_t: jax.Array, gamma: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
    """Return running discounted sums of rewards; rewards are divided by their standard deviation.

    Args:
        g: ``[N]``, the sums at the end of the previous trajectory.
        r_t: rewards ``[T, N]``.
        done_t: ``[T, N]`` bool; the sum restarts after it.
        gamma: discount.

    Returns:
        The sums at the end ``[N]``, and those after each step ``[T, N]``.
    """

    def forward(g: jax.Array, at_t: Pair) -> Pair:
        r, done = at_t
        g = gamma * g + r
        return jnp.where(done, 0.0, g), g

    return jax.lax.scan(forward, g, (r_t, done_t))


def mean(x: jax.Array, weight: jax.Array | None = None) -> jax.Array:
    """Return the mean over rows; with `balanced` weights, over those that are not padding."""
    return x.mean() if weight is None else (x * weight).mean()


def balanced(weight: jax.Array, shards: Shards = UNSHARDED) -> jax.Array:
    """Return weights with which a mean over all rows is the mean over rows that are not padding.

    With them, the average of the shards' gradients is the gradient of that mean.

    Args:
        weight: ``[B]``, 0 for a row of padding, else 1.
        shards: the shards over whose rows the mean is taken.
    """
    rows = len(weight) * shards.count
    return weight * (rows / jnp.maximum(_count(weight, shards), 1.0))


def _count(weight: jax.Array, shards: Shards) -> jax.Array:
    """Return how many rows of all shards are not padding."""
    return shards.sum(shards.one_by_one(jnp.sum)(weight))


def _moments(
    x: jax.Array, weight: jax.Array | None, shards: Shards
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return number, mean and variance of all shards' rows ``x [B, ...]`` that are not padding."""
    count = jnp.asarray(len(x) * shards.count, jnp.float32)
    if weight is not None:
        count = _count(weight, shards)
        weight = weight.reshape(-1, *([1] * (x.ndim - 1)))
    safe = jnp.maximum(count, 1.0)

    def total(x: jax.Array, weight: jax.Array | None) -> jax.Array:
        return (x if weight is None else x * weight).sum(0)

    def squares(x: jax.Array, middle: jax.Array, weight: jax.Array | None) -> jax.Array:
        return total(jnp.square(x - middle), weight)

    mean = shards.sum(shards.one_by_one(total)(x, weight)) / safe
    var = shards.sum(shards.one_by_one(squares)(x, mean, weight)) / safe
    return count, mean, var


def centre(advantage: jax.Array, weight: jax.Array | None, shards: Shards = UNSHARDED) -> jax.Array:
    """Scale advantages to mean 0 and sample deviation 1 (n - 1) over the rows of all shards that
    are not padding."""
    count, middle, variance = _moments(advantage, weight, shards)
    deviation = jnp.sqrt(variance * count / jnp.maximum(count - 1.0, 1.0))
    return (advantage - middle) / (deviation + 1e-8)


def explained_variance(
    value: jax.Array, target: jax.Array, weight: jax.Array | None, shards: Shards = UNSHARDED
) -> jax.Array:
    """Return 1 - Var[target - value] / Var[target] over all shards; 0 if targets do not vary."""
    _, _, spread = _moments(target, weight, shards)
    _, _, left = _moments(target - value, weight, shards)
    return jnp.where(spread > 0, 1.0 - left / jnp.maximum(spread, 1e-12), 0.0)


# --- The statistics by which observations are normalised ----------------------------------------

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


def values_around(values: jax.Array, trajectory: Trajectory) -> tuple[jax.Array, jax.Array]:
    """Return the values ``[T, N]`` before and after each step.

    After a truncation, the value is that of the episode's final observation.

    Args:
        values: the values ``[T * N + N + C]`` of the trajectory's `obs`, its `last_obs` and its
            `finals`, in this order.
        trajectory: holds the positions of the final observations.
    """
    shape = trajectory.rewards.shape
    steps = shape[0] * shape[1]
    v_t = values[:steps].reshape(shape)
    v_tp1 = values[shape[1] : steps + shape[1]]
    finals = values[steps + shape[1] :]
    v_tp1 = v_tp1.at[trajectory.finals.index].set(finals, mode="drop")
    return v_t, v_tp1.reshape(shape)
