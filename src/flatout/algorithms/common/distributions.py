"""Distributions of actions for acting and losses, parametrised by a head's output ``x[..., P]``.

The noise of a sample is a function of (key, environment, step); without noise `sample` returns the
mode ``[B, ...]``. Log probabilities (or densities) and entropies are ``[B]``. `to_environment`
turns a sample into the action, which `low` and `high` limit for each parameter. `deviations` is the
length of `extra`.

Masks of allowed actions are applied to the outputs by which an action is chosen. An output of a
forbidden value becomes `FORBIDDEN`. So a softmax gives it probability 0, a maximum never takes it,
and no gradient passes through it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flatout.actions import CompositeSpec, MultiDiscreteSpec, mask_columns
from flatout.casts import inwards
from flatout.randomness import gumbels, normals
from flatout.types import ActionSpec, ContinuousSpec, DiscreteSpec


class Categorical:
    """A distribution over ``n`` actions by logits, sampled with Gumbel noise: ``argmax(x + g)``."""

    deviations = 0

    def __init__(self, n: int) -> None:
        self.parameters = n
        self.low, self.high = np.full(n, -np.inf, np.float32), np.full(n, np.inf, np.float32)

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

    def __init__(self, low: tuple[float, ...], high: tuple[float, ...]) -> None:
        self.parameters = self.deviations = len(low)
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


class Product:
    """Independent distributions, one for each part of an action.

    Their parameters, noise, deviations and samples are concatenated. A sample is ``[B, K]``.

    Args:
        parts: the distributions.
        specs: the action of each, which gives the form of its samples.
        dtype: the type of samples.
    """

    def __init__(
        self, parts: Sequence[Distribution], specs: Sequence[ActionSpec], dtype: str = "int32"
    ) -> None:
        self._parts, self._specs, self._dtype = list(parts), list(specs), dtype
        self.parameters = sum(part.parameters for part in parts)
        self.deviations = sum(part.deviations for part in parts)
        self.low = np.concatenate([part.low for part in parts])
        self.high = np.concatenate([part.high for part in parts])

    def _each(
        self, x: jax.Array, extra: jax.Array, values: jax.Array | None = None
    ) -> Iterator[tuple[Distribution, jax.Array, jax.Array, Any]]:
        """Yield each distribution with its parameters, deviations and noise ``[B, P]``."""
        at = more = 0
        for part in self._parts:
            end, last = at + part.parameters, more + part.deviations
            own = None if values is None else values[..., at:end]
            yield part, x[..., at:end], extra[more:last], own
            at, more = end, last

    def _samples(self, sample: jax.Array) -> Iterator[jax.Array]:
        """Yield each part's sample, in the form that it returns."""
        start = 0
        for spec in self._specs:
            size = math.prod(spec.choice_shape)
            own = sample[..., start : start + size].astype(spec.choice_dtype)
            start += size
            yield own if spec.choice_shape else own[..., 0]

    def _join(self, samples: list[jax.Array]) -> jax.Array:
        columns = (
            one if spec.choice_shape else one[..., None]
            for one, spec in zip(samples, self._specs, strict=True)
        )  # fmt: skip
        return jnp.concatenate([one.astype(self._dtype) for one in columns], -1)

    def noise(self, key: jax.Array, env: jax.Array, step: jax.Array) -> jax.Array:
        streams = (jax.random.fold_in(key, number) for number in range(len(self._parts)))
        drawn = [
            part.noise(stream, env, step) for part, stream in zip(self._parts, streams, strict=True)
        ]
        return jnp.concatenate(drawn, -1)

    def sample(self, x: jax.Array, extra: jax.Array, noise: jax.Array | None) -> jax.Array:
        each = self._each(x, extra, noise)
        return self._join([part.sample(own, std, drawn) for part, own, std, drawn in each])

    def log_prob(self, x: jax.Array, extra: jax.Array, sample: jax.Array) -> jax.Array:
        each = zip(self._each(x, extra), self._samples(sample), strict=True)
        return sum(
            (part.log_prob(own, std, taken) for (part, own, std, _), taken in each),
            jnp.zeros(()),
        )

    def entropy(self, x: jax.Array, extra: jax.Array) -> jax.Array:
        each = self._each(x, extra)
        return sum((part.entropy(own, std) for part, own, std, _ in each), jnp.zeros(()))

    def to_environment(self, sample: jax.Array) -> jax.Array:
        each = zip(self._parts, self._samples(sample), strict=True)
        return self._join([part.to_environment(taken) for part, taken in each])


Distribution = Categorical | DiagonalGaussian | Product


def distribution(spec: ActionSpec) -> Distribution:
    """Return the distribution for an action space."""
    if isinstance(spec, DiscreteSpec):
        return Categorical(spec.n)
    if isinstance(spec, ContinuousSpec):
        return DiagonalGaussian(spec.low, spec.high)
    if isinstance(spec, MultiDiscreteSpec):
        choices = [DiscreteSpec(n) for n in spec.counts]
        return Product([distribution(one) for one in choices], choices)
    assert isinstance(spec, CompositeSpec)
    return Product([distribution(part) for part in spec.parts], spec.parts, spec.choice_dtype)


# --- Masks of allowed actions -------------------------------------------------------------------

FORBIDDEN = np.float32(np.finfo(np.float32).min / 2)
"""Far below every output, and finite: a product with a probability of 0 is 0, not NaN."""


def masked(x: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Return outputs ``[..., P]`` with those that a mask ``[..., P]`` forbids replaced; None allows
    all."""
    return x if mask is None else jnp.where(mask, x, FORBIDDEN)


def parameter_mask(spec: ActionSpec, mask: jax.Array | None) -> jax.Array | None:
    """Return a mask of the outputs ``[B, P]`` of a distribution, for the mask ``[B, K]`` of an
    action's choices: a box has outputs, which are always allowed, but no entries in K."""
    if mask is None:
        return None
    columns = np.array(mask_columns(spec))
    if (columns >= 0).all():  # they are in the mask's order
        return mask
    return jnp.where(columns < 0, True, mask[:, columns])


def drawn(uniform: jax.Array, mask: jax.Array) -> jax.Array:
    """Return allowed values, int32 ``[B]``, each equally probable.

    Args:
        uniform: ``[B]``, from 0 to 1.
        mask: ``[B, n]``; the value 0 is returned where nothing is allowed.
    """
    count = mask.sum(-1)
    rank = jnp.minimum(jnp.floor(uniform * count), count - 1)  # a product may be rounded up
    return ((jnp.cumsum(mask, -1) > rank[:, None]) & mask).argmax(-1).astype(jnp.int32)
