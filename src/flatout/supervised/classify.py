"""The classification algorithm: the cross-entropy of a network, one gradient step per batch.

`parts` builds it. The same network learns the same on one device and on several.
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
from flatout.algorithms.shards import UNSHARDED, Losses, gradient, over_devices
from flatout.config.hyper import ClassifyConfig
from flatout.supervised.networks import DENSE, Normalisation, Normalise, built_in, own
from flatout.types import DiscreteSpec, ObservationSpec, Trajectory

METRICS = ("loss", "accuracy", "l2", "grad_norm", "learning_rate", "updates")
FORGET = 0.1
"""The weight of a batch's mean and variance in the running ones (Ioffe and Szegedy, 2015)."""


class ClassifierParams(NamedTuple):
    """The network's arrays and its running statistics."""

    networks: Any
    moments: tuple[Normalisation, ...]


def classify(config: ClassifyConfig, spec: BuildSpec) -> Algorithm:
    """Build the classifier's pure functions; T and the run's steps count gradient steps.

    With a micro-batch, batch normalisation uses the statistics of each micro-batch.

    Raises:
        UsageError: the network does not fit the examples or the number of classes.
    """
    assert isinstance(spec.action_spec, DiscreteSpec)  # a label
    classes, shards = spec.action_spec.n, spec.shards
    examples = spec.obs_spec
    assert isinstance(examples, ObservationSpec)  # a dataset's
    if spec.network is None:
        model = built_in(config, examples.shape, classes)
    else:
        assert callable(spec.network)
        model = own(spec.network, config.network, examples.shape, classes)
    norm, high = bool(model.channels), float(examples.high or 1)
    arrays, static = eqx.partition(model.build(None), eqx.is_inexact_array)
    steps, alone = Optimiser(arrays), shards.each_step

    def init(key: np.ndarray, hp: Any) -> State:
        networks = eqx.filter(model.build(key), eqx.is_inexact_array)
        moments = tuple(
            Normalisation(np.zeros(n, np.float32), np.ones(n, np.float32)) for n in model.channels
        )
        params = ClassifierParams(jax.tree.map(np.asarray, networks), moments)
        counters = Counters(np.zeros((), np.int32), np.zeros((), np.int32))
        return State(params, steps.init(), counters)

    def logits(
        networks: Any, x: jax.Array, normalise: Normalise,
        dropped: tuple[jax.Array, jax.Array] | None = None,
    ) -> tuple[jax.Array, tuple[Normalisation, ...]]:  # fmt: skip
        """Return logits ``[B, classes]``, and the statistics that were used."""
        x = x.astype(jnp.float32) / high
        return model.logits(eqx.combine(networks, static), x, normalise, dropped)

    def loss(
        average: Callable[[jax.Array], jax.Array], networks: Any,
        batch: tuple[jax.Array, jax.Array, jax.Array | None], hp: Any,
    ) -> Losses:  # fmt: skip
        x, labels, kept = batch
        dropped = None if kept is None else (kept, hp.dropout)
        outputs, seen = logits(networks, x, lambda _, x: batch_moments(x, average), dropped)
        error = optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()
        weights = [array for array in jax.tree.leaves(networks) if array.ndim > 1]
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
            if model.dropout:
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


def batch_moments(x: jax.Array, average: Callable[[jax.Array], jax.Array]) -> Normalisation:
    """Return mean and variance per channel of ``[B, H, W, C]``; `average` averages over shards."""
    mean = average(x.mean((0, 1, 2)))
    return Normalisation(mean, average(jnp.square(x - mean).mean((0, 1, 2))))
