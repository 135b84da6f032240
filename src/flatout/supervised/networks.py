"""The networks of classification: the built-in convolutional ones, and users' own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flatout.config.hyper import ClassifyConfig
from flatout.errors import FlatoutError, UsageError, failure
from flatout.networks.convolution import convolve
from flatout.networks.layers import Conv, FanIn, Linear
from flatout.networks.torsos import Network
from flatout.randomness import wrap_key
from flatout.types import Array

DENSE = 100
"""The number of units of the built-in networks' dense layer."""

SIZES = {"small": ((6, 5), (12, 5)), "large": ((12, 5), (24, 3))}
"""Channels and kernel sizes of the two convolutions."""

Shape = tuple[int, ...]


class Normalisation(NamedTuple):
    """Running statistics of batch normalisation: a mean and a variance per channel."""

    mean: Array
    var: Array


Normalise = Callable[[int, jax.Array], Normalisation]
"""``(layer, outputs [B, H, W, C]) -> statistics`` with which the outputs are normalised."""


class Model(NamedTuple):
    """A network as the update and the test use it.

    Attributes:
        build: ``(raw key uint32[2] | None) -> module``; None builds one for its shapes only.
        logits: ``(module, examples float32 [B, ...], normalise, dropped) -> logits [B, classes],
            statistics``: those that batch normalisation used. `dropped` is None, or which units of
            the dense layer stay ``[B, DENSE]`` and the fraction of those that do not.
        channels: the channels of each batch normalisation.
        dropout: whether the update drops units.
    """

    build: Callable[[np.ndarray | None], Any]
    logits: Callable[..., tuple[jax.Array, tuple[Normalisation, ...]]]
    channels: Shape = ()
    dropout: bool = False


class ConvNet(eqx.Module):
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


def built_in(config: ClassifyConfig, shape: Shape, classes: int) -> Model:
    """Return the built-in network for images ``[H, W, C]`` or ``[H, W]``.

    Raises:
        UsageError: the examples are no images, or too small.
    """
    if len(shape) not in (2, 3):
        raise UsageError(
            f"the built-in network reads images [rows, columns, channels], not examples of shape "
            f"{list(shape)}: give a network of your own (--network module:function)."
        )
    rows, columns, channels = (*shape, 1)[:3]
    if min(rows, columns) < 4:
        raise UsageError(f"images of {rows}x{columns} are too small to be pooled twice.")
    (first, size), (second, other) = SIZES[config.size]
    norm = config.size == "small"
    counts = (first, second) if norm else ()

    def build(key: np.ndarray | None) -> ConvNet:
        draw = FanIn(None if key is None else np.random.default_rng(key))
        flat = (rows // 4) * (columns // 4) * second
        layers = (Conv(draw, channels, first, size), Conv(draw, first, second, other))
        return ConvNet(
            (layers[0].weight, layers[1].weight),
            tuple(np.ones(n, np.float32) for n in counts),
            (np.zeros(first, np.float32), np.zeros(second, np.float32)),
            Linear(draw, flat, DENSE, 1.0),
            Linear(draw, DENSE, classes, 1.0),
        )

    def logits(
        module: ConvNet, x: jax.Array, normalise: Normalise,
        dropped: tuple[jax.Array, jax.Array] | None = None,
    ) -> tuple[jax.Array, tuple[Normalisation, ...]]:  # fmt: skip
        x, seen = x.reshape(-1, rows, columns, channels), list[Normalisation]()
        for layer, kernel in enumerate(module.kernels):
            x = convolve(x, kernel, 1, "SAME")
            if norm:
                now = normalise(layer, x)
                seen.append(now)
                x = (x - now.mean) * jax.lax.rsqrt(now.var + 1e-5) * module.scale[layer]
            x = pool(jax.nn.relu(x + module.shift[layer]))
        x = jax.nn.relu(module.dense(x.reshape(len(x), -1)))
        if dropped is not None:
            kept, share = dropped
            x = jnp.where(kept, x / (1 - share), 0.0)
        return module.head(x), tuple(seen)

    return Model(build, logits, counts, not norm and config.dropout > 0)


@jax.custom_vjp
def pool(x: jax.Array) -> jax.Array:
    """Max-pool ``[B, H, W, C]`` over 2x2 pixels; an odd last row or column is left out.

    Equal largest pixels share the gradient. Of finite values XLA's own gradient of a maximum gives
    the same, but counts the equal pixels with a reduction, which a CPU computes slowly over few
    channels.
    """
    return functools.reduce(jnp.maximum, _corners(x))


def _corners(x: jax.Array) -> list[jax.Array]:
    """Return the four pixels of each square, ``[B, H / 2, W / 2, C]`` each."""
    rows, columns = (n // 2 * 2 for n in x.shape[1:3])
    return [x[:, i:rows:2, j:columns:2] for i in range(2) for j in range(2)]


def _pool_backward(residuals: tuple[Any, Any], grad: jax.Array) -> tuple[jax.Array]:
    x, largest = residuals
    batch, rows, columns, channels = largest.shape
    equal = sum((one == largest).astype(x.dtype) for one in _corners(x))
    shared = (grad / equal)[:, :, None, :, None]
    squares = x[:, : 2 * rows, : 2 * columns].reshape(batch, rows, 2, columns, 2, channels)
    by_x = jnp.where(squares == largest[:, :, None, :, None], shared, 0.0)
    by_x = by_x.reshape(batch, 2 * rows, 2 * columns, channels)
    odd = [(0, all_of - pooled) for all_of, pooled in zip(x.shape, by_x.shape, strict=True)]
    return (jnp.pad(by_x, odd),)


def _pool_forward(x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    largest = pool(x)
    return largest, (x, largest)


pool.defvjp(_pool_forward, _pool_backward)


# --- A user's network ---------------------------------------------------------------------------


def own(make: Network, name: str, shape: Shape, classes: int) -> Model:
    """Return the network that a user's function makes; only shapes are computed to check it.

    Its float arrays are learned. Other arrays are constants, equal for every seed.

    Args:
        make: ``(key, shape) -> module``, which maps one example ``[...]`` float32 to ``[classes]``.
        name: the network's name in messages.

    Raises:
        UsageError: the function fails, or the module does not fit; the message says why.
    """

    def build(key: np.ndarray | None) -> Any:
        data = np.zeros(2, np.uint32) if key is None else key
        try:
            module = make(wrap_key(jnp.asarray(data)), shape)
        except FlatoutError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise UsageError(
                f"building the network {name} failed: {failure(error)}; the function is called "
                f"with a key and the shape of an example, {list(shape)}."
            ) from error
        _refuse_state(name, module)
        if not callable(module):
            raise UsageError(
                f"the function {name} returned {type(module).__name__}; it must return a module "
                "that maps one example to a vector of logits."
            )
        return jax.tree.map(_single_precision, module)

    def logits(
        module: Any, x: jax.Array, normalise: Normalise, dropped: None = None
    ) -> tuple[jax.Array, tuple[Normalisation, ...]]:
        return jax.vmap(module)(x), ()

    _check(name, build(None), shape, classes)
    return Model(build, logits)


def _single_precision(leaf: Any) -> Any:
    """Return a leaf of a module; an array of float64, which NumPy draws, as float32."""
    double = getattr(leaf, "dtype", None) == np.float64
    return np.asarray(leaf, np.float32) if double else leaf


def _refuse_state(name: str, module: Any) -> None:
    """Refuse a network with state (batch normalisation), or a pair of a module and its state."""
    stateful = (eqx.nn.State, eqx.nn.StateIndex)
    leaves = jax.tree.leaves(module, is_leaf=lambda node: isinstance(node, stateful))
    if any(isinstance(leaf, stateful) for leaf in leaves):
        raise UsageError(
            f"the network {name} has state, as eqx.nn.BatchNorm has, which is not supported; use "
            "a layer without state instead, such as eqx.nn.LayerNorm or eqx.nn.GroupNorm."
        )


def _check(name: str, module: Any, shape: Shape, classes: int) -> None:
    """Refuse a module that does not map one example to a logit for each class."""
    if not jax.tree.leaves(eqx.filter(module, eqx.is_inexact_array)):
        raise UsageError(
            f"the network {name} has no float arrays to learn; a module is a pytree, such as an "
            "equinox.Module, whose arrays are leaves."
        )
    example = jax.ShapeDtypeStruct((1, *shape), np.float32)
    try:
        out = jax.eval_shape(jax.vmap(module), example)
    except Exception as error:  # a user's module may raise anything
        raise UsageError(
            f"the network {name} does not accept one example of shape {list(shape)} (float32): "
            f"{failure(error)}."
        ) from error
    if not hasattr(out, "shape"):
        raise UsageError(
            f"the network {name} returns {type(out).__name__} for one example; it must return "
            f"an array of {classes} logits alone."
        )
    if len(out.shape) != 2 or not jnp.issubdtype(out.dtype, jnp.floating):
        raise UsageError(
            f"the network {name} returns {out.dtype}{[*out.shape[1:]]} for one example; it must "
            f"return a vector of {classes} float logits, one for each class."
        )
    if out.shape[1] != classes:
        raise UsageError(
            f"the network {name} returns {out.shape[1]} logits, but the data has {classes} "
            f"classes: give its last layer {classes} outputs."
        )
