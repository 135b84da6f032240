"""Distributions of actions for acting and losses, parametrised by a head's output ``x[..., P]``.

The noise of a sample is a function of (key, environment, step); without noise `sample` returns the
mode ``[B, ...]``. Log probabilities (or densities) and entropies are ``[B]``. `to_environment`
turns a sample into the environment's action.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.common.randomness import gumbels, normals
from flatout.types import ActionSpec, ContinuousSpec, DiscreteSpec


class Categorical:
    """A distribution over ``n`` actions by logits, sampled with Gumbel noise: ``argmax(x + g)``."""

    continuous = False

    def __init__(self, n: int) -> None:
        self.parameters = n

    def noise(self, key: jax.Array, env: jax.Array, step: jax.Array) -> jax.Array:
        return gumbels(key, env, step, self.parameters)

    def sample(self, x: jax.Array, extra: jax.Array, noise: jax.Array | None) -> jax.Array:
        return jnp.argmax(x if noise is None else x + noise, -1).astype(jnp.int32)

    def log_prob(self, x: jax.Array, extra: jax.Array, sample: jax.Array) -> jax.Array:
        log_p = jax.nn.log_softmax(x)
        # A one-hot product, not a gather: its gradient is a product too, and scatters are slow.
        return (log_p * jax.nn.one_hot(sample, self.parameters)).sum(-1)

    def entropy(self, x: jax.Array, extra: jax.Array) -> jax.Array:
        log_p = jax.nn.log_softmax(x)
        return -(jnp.exp(log_p) * log_p).sum(-1)

    def to_environment(self, sample: jax.Array) -> jax.Array:
        return sample


class DiagonalGaussian:
    """A Gaussian with means from the head and separate log deviations (`extra`, ``[A]``).

    Samples are unbounded. They are clipped only for the environment, not for the learner.
    """

    continuous = True

    def __init__(self, low: tuple[float, ...], high: tuple[float, ...]) -> None:
        self.parameters = len(low)
        self.low, self.high = inwards(low, high)

    def noise(self, key: jax.Array, env: jax.Array, step: jax.Array) -> jax.Array:
        return normals(key, env, step, self.parameters)

    def sample(self, x: jax.Array, extra: jax.Array, noise: jax.Array | None) -> jax.Array:
        return x if noise is None else x + jnp.exp(extra) * noise

    def log_prob(self, x: jax.Array, extra: jax.Array, sample: jax.Array) -> jax.Array:
        z = (sample - x) * jnp.exp(-extra)
        return (-0.5 * jnp.square(z) - extra - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self, x: jax.Array, extra: jax.Array) -> jax.Array:
        one = (extra + 0.5 * math.log(2 * math.pi * math.e)).sum()
        return jnp.full(x.shape[:-1], one)

    def to_environment(self, sample: jax.Array) -> jax.Array:
        return jnp.clip(sample, self.low, self.high)


Distribution = Categorical | DiagonalGaussian


def inwards(low: tuple[float, ...], high: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Round float64 bounds inwards to float32 ``[A]``: float32(0.1) exceeds a bound of 0.1."""
    low64, high64 = np.asarray(low, np.float64), np.asarray(high, np.float64)
    low32, high32 = low64.astype(np.float32), high64.astype(np.float32)
    low32 = np.where(low32 < low64, np.nextafter(low32, np.float32(np.inf)), low32)
    high32 = np.where(high32 > high64, np.nextafter(high32, np.float32(-np.inf)), high32)
    return low32, high32


def distribution(spec: ActionSpec) -> Distribution:
    """Return the distribution for an action space."""
    if isinstance(spec, DiscreteSpec):
        return Categorical(spec.n)
    assert isinstance(spec, ContinuousSpec)
    return DiagonalGaussian(spec.low, spec.high)
