"""Torsos and heads as Equinox modules; ours map any batch, a user's one observation.

Convolutions are NHWC with HWIO kernels; dense weights are ``[out, in]``: for few rows and many
weights a CPU is faster with them than with ``[in, out]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flatout.config import NetworkConfig
from flatout.convolution import convolve
from flatout.errors import UsageError
from flatout.types import Array, ObservationSpec

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "elu": jax.nn.elu,
}

Network = Callable[[jax.Array, tuple[int, ...]], Any]
"""A custom torso: ``(key, observation_shape) -> equinox.Module`` mapping one observation
``[...]`` float32 to features ``[F]``. Actor and critic each get one, with heads appended."""


def orthogonal(rng: np.random.Generator | None, shape: tuple[int, int], gain: float) -> Any:
    """An orthogonal ``[in, out]`` matrix times `gain` (Saxe et al., 2014).

    NumPy draws it: the same numbers on every device, and no program to compile for it. Without a
    generator it is all zeros, for who needs only shapes.
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
    """Draws weights and biases uniformly within 1 / sqrt(inputs), as PyTorch's layers do."""

    rng: np.random.Generator | None

    def draw(self, shape: tuple[int, ...], inputs: int) -> Any:
        """An array of `shape`, zeros without a generator."""
        if self.rng is None:
            return np.zeros(shape, np.float32)
        bound = 1.0 / math.sqrt(inputs)
        return self.rng.uniform(-bound, bound, shape).astype(np.float32)


Draw = np.random.Generator | FanIn | None
"""What initial parameters come from: a generator alone draws orthogonally; None gives zeros."""


def _weight(draw: Draw, shape: tuple[int, int], gain: float) -> Any:
    if isinstance(draw, FanIn):
        return draw.draw(shape, shape[0])
    return orthogonal(draw, shape, gain)


def _bias(draw: Draw, inputs: int, size: int) -> Any:
    if isinstance(draw, FanIn):
        return draw.draw((size,), inputs)
    return np.zeros((size,), np.float32)


class Linear(eqx.Module):
    """``x[..., in] -> x @ weight.T + bias``; `gain` scales orthogonal initial weights."""

    weight: Array
    bias: Array

    def __init__(self, draw: Draw, inputs: int, outputs: int, gain: float) -> None:
        self.weight = np.ascontiguousarray(_weight(draw, (inputs, outputs), gain).T)
        self.bias = _bias(draw, inputs, outputs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.weight.T + self.bias


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


class MLP(eqx.Module):
    """Fully connected hidden layers over the last `dims` dimensions, flattened: ``[F]``."""

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


class NatureCNN(eqx.Module):
    """The DQN convolutions (Mnih et al., 2015): 32@8x8/4, 64@4x4/2, 64@3x3/1, dense 512.

    Published without padding; `padding` ``"SAME"`` keeps the borders.
    """

    convolutions: tuple[Conv, ...]
    dense: Linear

    def __init__(self, draw: Draw, shape: tuple[int, ...], padding: str = "VALID") -> None:
        rows, columns, channels = shape
        layers: list[Conv] = []
        for outputs, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            layers.append(Conv(draw, channels, outputs, size, stride, padding))
            rows, columns = (
                -(-n // stride) if padding == "SAME" else (n - size) // stride + 1
                for n in (rows, columns)
            )
            channels = outputs
        if rows < 1 or columns < 1:
            raise UsageError(
                f"network = nature needs images of at least 36x36, not {shape[0]}x{shape[1]}; "
                "use network = grid or mlp."
            )
        self.convolutions = tuple(layers)
        self.dense = Linear(draw, rows * columns * channels, 512, math.sqrt(2))

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.convolutions:
            x = jax.nn.relu(layer(x))
        return jax.nn.relu(self.dense(x.reshape(*x.shape[:-3], -1)))


class Grid(eqx.Module):
    """A small board: cell values one-hot, conv 32@3x3 and 64@3x3 (SAME), then dense layers."""

    convolutions: tuple[Conv, ...]
    dense: MLP
    values: int = eqx.field(static=True)

    def __init__(
        self,
        draw: Draw,
        shape: tuple[int, ...],
        high: int,
        hidden: tuple[int, ...],
        activation: str,
    ) -> None:
        rows, columns, channels = shape
        self.values = high + 1
        self.convolutions = (
            Conv(draw, channels * self.values, 32, 3, padding="SAME"),
            Conv(draw, 32, 64, 3, padding="SAME"),
        )
        self.dense = MLP(draw, rows * columns * 64, hidden, activation, 3)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = one_hot_cells(x, self.values)
        for layer in self.convolutions:
            x = jax.nn.relu(layer(x))
        return self.dense(x)


class WideGrid(eqx.Module):
    """A small board as an image: conv 100@4x4 and 200@3x3 without padding, dense 200."""

    convolutions: tuple[Conv, ...]
    dense: Linear

    def __init__(self, draw: Draw, shape: tuple[int, ...]) -> None:
        rows, columns, channels = shape
        if min(rows, columns) < 6:
            raise UsageError(
                f"network = wide_grid needs boards of at least 6x6, not {rows}x{columns}; use "
                "network = grid."
            )
        self.convolutions = (Conv(draw, channels, 100, 4), Conv(draw, 100, 200, 3))
        self.dense = Linear(draw, (rows - 5) * (columns - 5) * 200, 200, math.sqrt(2))

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.convolutions:
            x = jax.nn.relu(layer(x))
        return jax.nn.relu(self.dense(x.reshape(*x.shape[:-3], -1)))


class OneHot(eqx.Module):
    """A small board without convolutions: cell values one-hot, then dense layers."""

    dense: MLP
    values: int = eqx.field(static=True)

    def __init__(
        self,
        draw: Draw,
        shape: tuple[int, ...],
        high: int,
        hidden: tuple[int, ...],
        activation: str,
    ) -> None:
        self.values = high + 1
        self.dense = MLP(draw, math.prod(shape) * self.values, hidden, activation, 3)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.dense(one_hot_cells(x, self.values))


def one_hot_cells(x: jax.Array, values: int) -> jax.Array:
    """Cells ``[..., H, W, c]`` scaled to 0..1, as ``[..., H, W, c * values]`` of 0 and 1."""
    cells = jnp.round(x * (values - 1)).astype(jnp.int32)
    return jax.nn.one_hot(cells, values).reshape(*x.shape[:-1], -1)


class Torso(Protocol):
    """What a torso is: one observation in, features out; those here take batches, too."""

    def __call__(self, x: jax.Array, /) -> jax.Array: ...


def over_batch(torso: Torso, x: jax.Array) -> jax.Array:
    """Features ``[B, F]`` of a batch ``[B, ...]``."""
    # By exact type: a user's subclass maps one observation.
    return torso(x) if type(torso) in BATCHED else jax.vmap(torso)(x)


BATCHED = (MLP, NatureCNN, Grid, WideGrid, OneHot)


def make_torso(
    draw: Draw,
    spec: ObservationSpec,
    config: NetworkConfig,
    network: Network | None,
) -> Torso:
    """Build the configured torso, or the user's own, with drawn parameters.

    Raises:
        UsageError: a network that does not fit the observation.
    """
    if network is not None:
        rng = draw.rng if isinstance(draw, FanIn) else draw
        drawn = np.zeros(2, np.uint32) if rng is None else rng.integers(0, 2**32, 2, np.uint32)
        words = jnp.asarray(drawn)
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        try:
            return network(key, spec.shape)
        except Exception as error:  # a user's function may raise anything
            raise UsageError(
                f"making the network failed: {type(error).__name__}: {error}; it is called with "
                "(key, observation_shape)."
            ) from error
    kind = config.network
    if kind == "auto":
        kind = "mlp" if not spec.is_image else ("nature" if min(spec.shape[:2]) >= 36 else "grid")
        if kind == "grid" and (spec.high is None or spec.high > 31):
            kind = "mlp"
    if kind == "mlp":
        dims = len(spec.shape)
        return MLP(draw, math.prod(spec.shape), config.hidden, config.activation, dims)
    if not spec.is_image:
        raise UsageError(
            f"network = {kind} needs image observations [rows, columns, channels], not "
            f"{list(spec.shape)}; use network = mlp."
        )
    if kind in ("nature", "nature_same"):
        return NatureCNN(draw, spec.shape, "VALID" if kind == "nature" else "SAME")
    if kind == "wide_grid":
        return WideGrid(draw, spec.shape)
    if spec.high is None or spec.high > 31:
        raise UsageError(
            f"network = {kind} needs whole-number cells of 0 to at most 31, but this observation's "
            f"largest value is {spec.high}; use network = nature or mlp."
        )
    board = Grid if kind == "grid" else OneHot
    return board(draw, spec.shape, spec.high, config.hidden, config.activation)


def features(torso: Torso, spec: ObservationSpec) -> int:
    """F, the length of the torso's output for one observation.

    Raises:
        UsageError: a custom torso that fails on such an observation or returns no vector.
    """
    try:
        out = jax.eval_shape(lambda x: torso(x), jax.ShapeDtypeStruct(spec.shape, jnp.float32))
    except Exception as error:  # a user's module may raise anything
        raise UsageError(
            f"the network does not accept one observation of shape {list(spec.shape)}: "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        ) from error
    if not hasattr(out, "shape") or len(out.shape) != 1:
        raise UsageError(
            f"the network must map one observation to a vector of features, not to {out}."
        )
    return out.shape[0]
