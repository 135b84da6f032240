"""Convolutions with fewer multiplications, for `convolution.convolve` (Winograd, 1980; Lavin and
Gray, 2016, section 4).

A tile of m x m outputs of a k x k kernel needs t x t products, t = m + k - 1, instead of
m^2 * k^2: tile and kernel, as polynomials, are evaluated at t points per dimension and multiplied,
and the outputs are interpolated.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import polynomial

POINTS = (0.0, 1.0, -1.0, 0.5, -0.5, 2.0)
"""The evaluation points other than infinity. With these, the relative error in float32 is about
1e-5; more points would be too imprecise."""

FEWER = 2.0
"""Tiles are used only if they need at most 1 / `FEWER` of the multiplications, including those of
the transformations: otherwise copying the tiles costs more than they save."""


def tiles_for(
    batch: int, rows: int, columns: int, size: int, channels: int, outputs: int
) -> int | None:
    """Return m of the tiles with the fewest multiplications for outputs ``[batch, rows, columns,
    outputs]``, or None if every m needs more than 1 / `FEWER` of those without tiles."""
    direct = batch * rows * columns * size**2 * channels * outputs
    best, least = None, direct / FEWER
    for m in range(2, len(POINTS) + 3 - size):
        points = (m + size - 1) ** 2
        each = points * (points * channels + channels * outputs + m**2 * outputs)
        tiles = batch * -(-rows // m) * -(-columns // m)
        count = tiles * each + points * size**2 * channels * outputs
        if count <= least:
            best, least = m, count
    return best


def convolve_tiles(x: jax.Array, weight: jax.Array, m: int) -> jax.Array:
    """Return a convolution without padding, ``[B, H - k + 1, W - k + 1, out]``.

    Args:
        x: ``[B, H, W, in]``.
        weight: ``[k, k, in, out]``.
        m: rows and columns of a tile of outputs.
    """
    batch, high, wide, channels = x.shape
    size, outputs = weight.shape[0], weight.shape[3]
    rows, columns = high - size + 1, wide - size + 1
    t, down, across = m + size - 1, -(-rows // m), -(-columns // m)
    x = jnp.pad(x, ((0, 0), (0, m * down - rows), (0, m * across - columns), (0, 0)))
    # [t * t, B * tiles, in]: the tiles' inputs by position.
    if down == across == 1:
        positions = x.reshape(batch, t * t, channels).transpose(1, 0, 2)
    else:
        last = (m * (down - 1) + 1, m * (across - 1) + 1)
        corners = itertools.product(range(t), repeat=2)
        positions = jnp.stack([x[:, i : i + last[0] : m, j : j + last[1] : m] for i, j in corners])
    of_input, of_weight, of_output = transformations(m, size)
    points = of_input @ positions.reshape(t * t, -1)
    kernel = of_weight @ weight.reshape(size * size, -1)
    points = products(points.reshape(t * t, -1, channels), kernel.reshape(t * t, channels, outputs))
    out = of_output @ points.reshape(t * t, -1)
    out = out.reshape(m, m, batch, down, across, outputs).transpose(2, 3, 0, 4, 1, 5)
    return out.reshape(batch, m * down, m * across, outputs)[:, :rows, :columns]


@jax.custom_vjp
def products(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Return ``x[p] @ weight[p]`` for every p. Gradients keep the order of dimensions, which saves
    transpositions on a CPU."""
    return jnp.einsum("pnc,pco->pno", x, weight)


def _products_backward(residuals: tuple[Any, Any], grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, weight = residuals
    by_x = jnp.einsum("pno,poc->pnc", grad, weight.transpose(0, 2, 1))
    return by_x, jnp.einsum("pnc,pno->pco", x, grad)


products.defvjp(lambda x, weight: (products(x, weight), (x, weight)), _products_backward)


@functools.cache
def transformations(m: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the matrices of input ``[t^2, t^2]``, weight ``[t^2, k^2]``, output ``[m^2, t^2]``."""
    t = m + size - 1
    points = np.array(POINTS[: t - 1])
    for_output = np.zeros((m, t))
    for_weight = np.zeros((t, size))
    for_input = np.zeros((t, t))
    for j, point in enumerate(points):
        other_points = np.delete(points, j)
        for_output[:, j] = point ** np.arange(m)
        for_weight[j] = point ** np.arange(size) / np.prod(point - other_points)
        for_input[j, : t - 1] = polynomial.polyfromroots(other_points)
    for_output[-1, -1] = for_weight[-1, -1] = 1.0  # the point at infinity
    for_input[-1] = polynomial.polyfromroots(points)
    factors = (for_input, for_weight, for_output)
    of_input, of_weight, of_output = (np.kron(x, x).astype(np.float32) for x in factors)
    return of_input, of_weight, of_output
