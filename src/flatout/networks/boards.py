"""Torsos for small boards whose cells are whole numbers. `torsos.make_torso` builds them."""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flatout.config.schema import NetworkConfig
from flatout.errors import UsageError
from flatout.networks.layers import MLP, Conv, ConvNet, Draw, Linear


class Grid(eqx.Module):
    """A torso for small boards: one-hot cells, conv 32@3x3 and 64@3x3 (SAME), then dense layers."""

    convolutions: tuple[Conv, ...]
    dense: MLP
    values: int = eqx.field(static=True)

    def __init__(
        self, draw: Draw, shape: tuple[int, ...], high: int, config: NetworkConfig
    ) -> None:
        rows, columns, channels = shape
        self.values = high + 1
        self.convolutions = (
            Conv(draw, channels * self.values, 32, 3, padding="SAME"),
            Conv(draw, 32, 64, 3, padding="SAME"),
        )
        self.dense = MLP(draw, rows * columns * 64, config.hidden, config.activation, 3)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = one_hot_cells(x, self.values)
        for layer in self.convolutions:
            x = jax.nn.relu(layer(x))
        return self.dense(x)


class WideGrid(ConvNet):
    """A torso for small boards as images: conv 100@4x4 and 200@3x3 without padding, dense 200."""

    def __init__(self, draw: Draw, shape: tuple[int, ...]) -> None:
        rows, columns, channels = shape
        if min(rows, columns) < 6:
            raise UsageError(
                f"network = wide_grid needs boards of at least 6x6, not {rows}x{columns}; use "
                "network = grid."
            )
        self.convolutions = (Conv(draw, channels, 100, 4), Conv(draw, 100, 200, 3))
        self.dense = Linear(draw, (rows - 5) * (columns - 5) * 200, 200, math.sqrt(2))


class OneHot(eqx.Module):
    """A torso for small boards without convolutions: one-hot cells, then dense layers."""

    dense: MLP
    values: int = eqx.field(static=True)

    def __init__(
        self, draw: Draw, shape: tuple[int, ...], high: int, config: NetworkConfig
    ) -> None:
        self.values = high + 1
        self.dense = MLP(draw, math.prod(shape) * self.values, config.hidden, config.activation, 3)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.dense(one_hot_cells(x, self.values))


def one_hot_cells(x: jax.Array, values: int) -> jax.Array:
    """Return cells ``[..., H, W, c]`` (see `cell_values`) one-hot, ``[..., H, W, c * values]``."""
    cells = cell_values(x, values)
    ones = cells[..., None] == np.arange(values, dtype=cells.dtype)
    return ones.astype(jnp.float32).reshape(*x.shape[:-1], -1)


class FromHead(eqx.Module):
    """The base class of torsos that see a board from its head, the cell of value 1."""

    dense: MLP
    values: int = eqx.field(static=True)

    def __init__(
        self, draw: Draw, shape: tuple[int, ...], high: int, config: NetworkConfig
    ) -> None:
        channels = shape[-1]
        if channels != 1 or high < 2:
            raise UsageError(
                f"network = {config.network} needs one board of cells 0 (empty), 1 (head), 2 and "
                f"more, not {channels} of cells 0 to {high}; use network = onehot or grid."
            )
        self.values = high + 1
        read = self.read(*shape[:2])
        self.dense = MLP(draw, math.prod(read), config.hidden, config.activation, len(read))

    def read(self, rows: int, columns: int) -> tuple[int, ...]:
        """Return the shape of the dense layers' input for boards of this size."""
        raise NotImplementedError

    def planes(self, x: jax.Array) -> jax.Array:
        """Return boards ``[..., H, W, 1]`` as planes ``[..., 2H - 1, 2W - 1, values - 1]``.

        The head is in the middle. Planes are 0 or 1: one for each cell value from 2 on, and a last
        one for cells outside the board.
        """
        *batch, rows, columns, _ = x.shape
        cells = cell_values(x, self.values).reshape(-1, rows * columns)
        head = (cells == 1).argmax(-1)
        row = (head // columns)[:, None] + np.arange(1 - rows, rows)
        column = (head % columns)[:, None] + np.arange(1 - columns, columns)
        row, column = row[:, :, None], column[:, None, :]
        inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
        index = jnp.where(inside, row * columns + column, 0)
        seen = jnp.take_along_axis(cells, index.reshape(len(cells), -1), 1).reshape(index.shape)
        seen = jnp.where(inside, seen, self.values)
        planes = jax.nn.one_hot(seen - 2, self.values - 1)  # values 0 and 1 give zeros
        return planes.reshape(*batch, *planes.shape[1:])


class Centred(FromHead):
    """A torso that sees a board from its head, then dense layers.

    The cells next to the head are the same inputs wherever the head is.
    """

    def read(self, rows: int, columns: int) -> tuple[int, ...]:
        return 2 * rows - 1, 2 * columns - 1, self.values - 1

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.dense(self.planes(x))


class Compass(FromHead):
    """A torso that sees how near each cell value is to the head in eight directions.

    The directions are the four straight lines from the head and the four quadrants between them.
    Nearness is 1 / steps to the nearest cell of the value, or 0 if there is none. The few inputs
    (24 for Snake) suit genetic algorithms.
    """

    def read(self, rows: int, columns: int) -> tuple[int, ...]:
        return 8, self.values - 1

    def __call__(self, x: jax.Array) -> jax.Array:
        rows, columns = x.shape[-3:-1]
        steps = abs(np.arange(1 - rows, rows))[:, None] + abs(np.arange(1 - columns, columns))
        near = self.planes(x) / np.maximum(steps, 1)[..., None]
        parts = [
            near[..., vertical, horizontal, :].max((-3, -2), initial=0)
            for vertical in thirds(rows)
            for horizontal in thirds(columns)
        ]
        del parts[4]  # the head itself
        return self.dense(jnp.stack(parts, -2))


def thirds(size: int) -> tuple[slice, slice, slice]:
    """Return slices of ``2 * size - 1`` cells: before the middle, the middle, and after it."""
    return slice(0, size - 1), slice(size - 1, size), slice(size, None)


def cell_values(x: jax.Array, values: int) -> jax.Array:
    """Return cells as whole numbers; floats are taken to be cells scaled to 0..1."""
    if jnp.issubdtype(x.dtype, jnp.integer):
        return x
    return jnp.round(x * (values - 1)).astype(jnp.int32)
