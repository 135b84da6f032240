"""Layers as Equinox modules that map any batch, and their initial parameters; torsos and heads
consist of them.

Convolutions are NHWC with HWIO kernels; dense weights are ``[out, in]``, which is faster than
``[in, out]`` on a CPU for few rows and many weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import psutil

from flatout.errors import FlatoutError
from flatout.networks.convolution import convolve
from flatout.types import Array

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "elu": jax.nn.elu,
}


def orthogonal(rng: np.random.Generator | None, shape: tuple[int, int], gain: float) -> Any:
    """Return an orthogonal ``[in, out]`` matrix times `gain` (Saxe et al., 2014).

    NumPy draws it, so that the numbers are the same on every device and nothing is compiled.
    Without a generator it is zeros, for shapes only.
    """
    if rng is None:
        return np.zeros(shape, np.float32)
    rows, columns = shape
    normal = rng.standard_normal((max(shape), min(shape)))
    q, r = np.linalg.qr(normal)
    q *= np.sign(np.diag(r))  # uniform over orthogonal matrices (Mezzadri, 2007)
    return np.asarray(gain * (q if rows >= columns else q.T), np.float32)


@dataclass(frozen=True)
class FanIn:
    """A source of weights and biases uniform within +-1 / sqrt(inputs), as in PyTorch's layers."""

    rng: np.random.Generator | None

    def draw(self, shape: tuple[int, ...], inputs: int) -> Any:
        """Draw a float32 array of `shape`; zeros without a generator."""
        if self.rng is None:
            return np.zeros(shape, np.float32)
        bound = 1.0 / math.sqrt(inputs)
        return self.rng.uniform(-bound, bound, shape).astype(np.float32)


NARROW = 8
"""The number of outputs below which `by_inputs` leaves a layer unchanged."""

FEW, NARROWER = 32, 4
"""`Linear` multiplies a single row input by input if there are at most `FEW` inputs, and at most
`NARROWER` per output. `by_inputs` has the same limit per output for members' layers, and uses `FEW`
as the largest number of rows for other layers."""

LARGE = 1 << 28
"""Bytes of weights above which a layer checks the available memory."""

Draw = np.random.Generator | FanIn | None
"""A source of initial parameters: a generator draws orthogonal weights; None gives zeros."""


def _weight(draw: Draw, shape: tuple[int, int], gain: float) -> Any:
    size = 4 * math.prod(shape)
    if size > LARGE and 4 * size > psutil.virtual_memory().available:
        raise FlatoutError(
            f"a layer of {shape[0]:,} x {shape[1]:,} weights takes {size >> 20:,} MiB, and several "
            "times as much while it learns. That is more than the available memory: lower --hidden."
        )
    if isinstance(draw, FanIn):
        return draw.draw(shape, shape[0])
    return orthogonal(draw, shape, gain)


def _bias(draw: Draw, inputs: int, size: int) -> Any:
    if isinstance(draw, FanIn):
        return draw.draw((size,), inputs)
    return np.zeros((size,), np.float32)


class Linear(eqx.Module):
    """A dense layer ``x[..., in] @ weight.T + bias``; `gain` scales orthogonal initial weights."""

    weight: Array
    bias: Array

    def __init__(self, draw: Draw, inputs: int, outputs: int, gain: float) -> None:
        self.weight = np.ascontiguousarray(_weight(draw, (inputs, outputs), gain).T)
        self.bias = _bias(draw, inputs, outputs)

    def __call__(self, x: jax.Array) -> jax.Array:
        outputs, inputs = self.weight.shape
        if x.shape[:-1] == (1,) and inputs <= min(FEW, NARROWER * outputs):
            # For one row: under `vmap` over members, XLA would make a small product for each.
            return sum(x[:, k, None] * self.weight[:, k] for k in range(inputs)) + self.bias
        return product(x, self.weight) + self.bias


@jax.custom_vjp
def product(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Return ``x[..., in] @ weight.T`` for a weight ``[out, in]``, with a gradient fast on CPUs."""
    return x @ weight.T


def _forward(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return x @ weight.T, (x, weight)


def _backward(residuals: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, weight = residuals
    rows, slopes = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
    by_weight = jax.lax.platform_dependent(
        rows, slopes, cpu=_weight_gradient, default=lambda rows, slopes: slopes.T @ rows
    )
    return g @ weight, by_weight


def _weight_gradient(rows: jax.Array, slopes: jax.Array) -> jax.Array:
    """Return a weight's gradient ``slopes.T @ rows``. XLA's product on CPUs is fast if the factor
    with fewer columns is transposed in memory first. Without the barriers, XLA would merge both
    into one product, which is slower (5 times with 4 inputs)."""
    if rows.shape[1] > slopes.shape[1]:
        return jax.lax.optimization_barrier(slopes.T) @ rows
    transposed = jax.lax.optimization_barrier(rows.T)
    return jax.lax.optimization_barrier(transposed @ slopes).T


product.defvjp(_forward, _backward)


def by_inputs(params: Any, rows: int) -> Any:
    """Prepare parameters for a loop of products with `rows` rows each.

    Where that is faster, the weights of linear layers are stored ``[in, out]`` in memory; values
    and shapes stay. Weights with a leading axis of members ignore `rows`: each has one row.
    """

    def transpose(part: Any) -> Any:
        if not isinstance(part, Linear):
            return part
        *stacked, outputs, inputs = part.weight.shape
        if inputs > NARROWER * outputs if stacked else rows > FEW or outputs < NARROW:
            return part
        across = jax.lax.optimization_barrier(jnp.swapaxes(part.weight, -1, -2))
        return eqx.tree_at(lambda layer: layer.weight, part, jnp.swapaxes(across, -1, -2))

    return jax.tree.map(transpose, params, is_leaf=lambda part: isinstance(part, Linear))


class Conv(eqx.Module):
    """A convolution over ``[..., H, W, in]`` with an HWIO kernel."""

    weight: Array
    bias: Array
    stride: int = eqx.field(static=True)
    padding: str = eqx.field(static=True)

    def __init__(
        self,
        draw: Draw,
        inputs: int,
        outputs: int,
        size: int,
        stride: int = 1,
        padding: str = "VALID",
        gain: float = math.sqrt(2),
    ) -> None:
        flat = _weight(draw, (size * size * inputs, outputs), gain)
        self.weight = flat.reshape(size, size, inputs, outputs)
        self.bias = _bias(draw, size * size * inputs, outputs)
        self.stride = stride
        self.padding = padding

    def __call__(self, x: jax.Array) -> jax.Array:
        return convolve(x, self.weight, self.stride, self.padding) + self.bias


class ConvNet(eqx.Module):
    """Convolutions and a dense layer, each followed by ReLU."""

    convolutions: tuple[Conv, ...]
    dense: Linear

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.convolutions:
            x = jax.nn.relu(layer(x))
        return jax.nn.relu(self.dense(x.reshape(*x.shape[:-3], -1)))


class MLP(eqx.Module):
    """Dense hidden layers over the last `dims` dimensions, flattened; outputs are ``[..., F]``."""

    layers: tuple[Linear, ...]
    activation: str = eqx.field(static=True)
    dims: int = eqx.field(static=True)

    def __init__(
        self, draw: Draw, inputs: int, hidden: tuple[int, ...], activation: str, dims: int = 1
    ) -> None:
        sizes = (inputs, *hidden)
        self.layers = tuple(
            Linear(draw, sizes[i], sizes[i + 1], math.sqrt(2)) for i in range(len(hidden))
        )
        self.activation = activation
        self.dims = dims

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(*x.shape[: x.ndim - self.dims], -1)
        for layer in self.layers:
            x = ACTIVATIONS[self.activation](layer(x))
        return x
