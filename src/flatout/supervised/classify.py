"""The classification algorithm: a small convolutional network, with one gradient step per batch.

`parts` builds it. Its purpose is to compare the same network on one device and on several.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from flatout.algorithms.base import Acted, Algorithm, BuildSpec, Counters, State, Updated
from flatout.algorithms.common.optimiser import Optimiser, schedule
from flatout.algorithms.hp import hyper_parameters
from flatout.algorithms.parallel.accumulate import Losses, gradient
from flatout.algorithms.parallel.shards import UNSHARDED, over_devices
from flatout.config.hyper import ClassifyConfig
from flatout.errors import UsageError
from flatout.networks.convolution import convolve
from flatout.networks.layers import Conv, Draw, FanIn, Linear
from flatout.types import Array, DiscreteSpec, ObservationSpec, Trajectory

METRICS = ("loss", "accuracy", "l2", "grad_norm", "learning_rate", "updates")
FORGET = 0.1
"""The weight of a batch's mean and variance in the running ones (Ioffe and Szegedy, 2015)."""

DENSE = 100
"""The number of units of the dense layer."""

SIZES = {"small": ((6, 5), (12, 5)), "large": ((12, 5), (24, 3))}
"""Channels and kernel sizes of the two convolutions."""


class Normalisation(NamedTuple):
    """Running statistics of batch normalisation: a mean and a variance per channel."""

    mean: Array
    var: Array


Normalise = Callable[[int, jax.Array], Normalisation]
"""``(layer, outputs [B, H, W, C]) -> statistics`` with which the outputs are normalised."""


class Network(eqx.Module):
    """Two convolutions with pooling, then a dense layer and the classes' logits.

    Attributes:
        kernels: the kernels of the two convolutions, ``[k, k, in, out]``.
        scale: batch normalisation's scale after each convolution; empty without normalisation.
        shift: biases, added after each convolution or its batch normalisation.
        dense, head: the last layers.
    """

    kernels: tuple[Array, Array]
    scale: tuple[Array, ...]
    shift: tuple[Array, Array]
    dense: Linear
    head: Linear


class ClassifierParams(NamedTuple):
    """The network's arrays and its running statistics."""

    networks: Network
    moments: tuple[Normalisation, ...]


def classify(config: ClassifyConfig, spec: BuildSpec) -> Algorithm:
    """Build the classifier's pure functions; T and the run's steps count gradient steps.

    With a micro-batch, batch normalisation uses the statistics of each micro-batch.

    Raises:
        UsageError: the images are too small.
    """
    assert isinstance(spec.action_spec, DiscreteSpec)  # a label
    classes, shards = spec.action_spec.n, spec.shards
    images = spec.obs_spec
    assert isinstance(images, ObservationSpec)  # a dataset's images
    rows, columns, channels = images.shape
    if min(rows, columns) < 4:
        raise UsageError(f"images of {rows}x{columns} are too small to be pooled twice.")
    (first, size), (second, other) = SIZES[config.size]
    norm = config.size == "small"
    counts = (first, second) if norm else ()
    dropout = 0.0 if norm else config.dropout  # 0 draws nothing
    high = float(images.high or 1)

    def build(draw: Draw) -> Network:
        flat = (rows // 4) * (columns // 4) * second
        layers = (Conv(draw, channels, first, size), Conv(draw, first, second, other))
        return Network(
            (layers[0].weight, layers[1].weight),
            tuple(np.ones(n, np.float32) for n in counts),
            (np.zeros(first, np.float32), np.zeros(second, np.float32)),
            Linear(draw, flat, DENSE, 1.0),
            Linear(draw, DENSE, classes, 1.0),
        )

    arrays, static = eqx.partition(build(FanIn(None)), eqx.is_array)
    steps, alone = Optimiser(arrays), shards.each_step

    def init(key: np.ndarray, hp: Any) -> State:
        networks = eqx.filter(build(FanIn(np.random.default_rng(key))), eqx.is_array)
        moments = tuple(
            Normalisation(np.zeros(n, np.float32), np.ones(n, np.float32)) for n in counts
        )
        params = ClassifierParams(jax.tree.map(np.asarray, networks), moments)
        counters = Counters(np.zeros((), np.int32), np.zeros((), np.int32))
        return State(params, steps.init(), counters)

    def logits(
        networks: Network, images: jax.Array, normalise: Normalise,
        dropped: tuple[jax.Array, jax.Array] | None = None,
    ) -> tuple[jax.Array, tuple[Normalisation, ...]]:  # fmt: skip
        """Return logits ``[B, classes]``, and the statistics that were used."""
        networks = eqx.combine(networks, static)
        x, seen = images.astype(jnp.float32) / high, list[Normalisation]()
        for layer, kernel in enumerate(networks.kernels):
            x = convolve(x, kernel, 1, "SAME")
            if norm:
                now = normalise(layer, x)
                seen.append(now)
                x = (x - now.mean) * jax.lax.rsqrt(now.var + 1e-5) * networks.scale[layer]
            x = pool(jax.nn.relu(x + networks.shift[layer]))
        x = jax.nn.relu(networks.dense(x.reshape(len(x), -1)))
        if dropped is not None:
            kept, share = dropped
            x = jnp.where(kept, x / (1 - share), 0.0)
        return networks.head(x), tuple(seen)

    def loss(
        average: Callable[[jax.Array], jax.Array], networks: Network,
        batch: tuple[jax.Array, jax.Array, jax.Array | None], hp: Any,
    ) -> Losses:  # fmt: skip
        images, labels, kept = batch
        dropped = None if kept is None else (kept, hp.dropout)
        outputs, seen = logits(networks, images, lambda _, x: batch_moments(x, average), dropped)
        error = optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()
        weights = (*networks.kernels, networks.dense.weight, networks.head.weight)
        l2 = 0.5 * hp.l2 * sum(jnp.sum(jnp.square(one)) for one in weights)
        right = (outputs.argmax(-1) == labels).astype(jnp.float32).mean()
        scalars = {"error": error, "accuracy": right, "l2": l2, "moments": seen}
        return error + l2, (scalars, None)

    # Batch normalisation needs the other shards' statistics in the middle of the network.
    grad = gradient(
        functools.partial(loss, alone.mean), config.batch_size, spec.micro_batch, shards,
        functools.partial(loss, over_devices), UNSHARDED if norm and shards.ordered else shards,
    )  # fmt: skip

    def update(state: State, data: Trajectory, key: jax.Array, hp: Any) -> Updated:
        stream = shards.key(key)

        def one(state: State, batch: tuple[jax.Array, jax.Array]) -> tuple[State, dict[str, Any]]:
            (networks, moments), opt, counters = state
            kept = None
            if dropout:
                drawing = jax.random.fold_in(stream, counters.step)
                kept = jax.random.bernoulli(drawing, 1 - hp.dropout, (len(batch[1]), DENSE))
            grads, scalars, _ = grad(networks, (*batch, kept), hp)
            rate = schedule(hp.learning_rate, counters.step, hp.total_steps)
            networks, opt, norm = steps.step(networks, grads, opt, rate)
            moments = jax.tree.map(
                lambda old, new: (1 - FORGET) * old + FORGET * new, moments, scalars.pop("moments")
            )
            scalars |= {
                "loss": scalars.pop("error"), "grad_norm": norm, "learning_rate": rate,
                "updates": jnp.ones(()),
            }  # fmt: skip
            counters = Counters(counters.step + 1, counters.updates + 1)
            networks, opt = shards.sync((networks, opt), counters.updates)
            return State(ClassifierParams(networks, moments), opt, counters), scalars

        state, history = jax.lax.scan(one, state, (data.obs, data.actions))
        metrics = {name: values.mean() for name, values in history.items()}
        return state, metrics | {"updates": history["updates"].sum()}, None

    def act(params: ClassifierParams, obs: jax.Array, carry: Any, draw: Any) -> Acted:
        outputs, _ = logits(params.networks, obs, lambda layer, _: params.moments[layer])
        return outputs.argmax(-1).astype(jnp.int32), carry, {}

    return Algorithm(
        name="classify",
        hp=hyper_parameters(config, spec.total_steps),
        init=init,
        act=act,
        update=update,
        metrics=METRICS,
        horizon=spec.horizon,
        shards=shards,
    )


def pool(x: jax.Array) -> jax.Array:
    """Max-pool ``[B, H, W, C]`` over 2x2 pixels; an odd last row or column is left out."""
    batch, rows, columns, channels = x.shape
    x = x[:, : rows // 2 * 2, : columns // 2 * 2]
    return x.reshape(batch, rows // 2, 2, columns // 2, 2, channels).max((2, 4))


def batch_moments(x: jax.Array, average: Callable[[jax.Array], jax.Array]) -> Normalisation:
    """Return mean and variance per channel of ``[B, H, W, C]``; `average` averages over shards."""
    mean = average(x.mean((0, 1, 2)))
    return Normalisation(mean, average(jnp.square(x - mean).mean((0, 1, 2))))
