"""Convolutions as matrix products for `layers.Conv`, NHWC with HWIO kernels; some with fewer
multiplications (Winograd, 1980; Lavin and Gray, 2016, section 4).

With fewer multiplications, a tile of m x m outputs of a k x k kernel needs t x t products, t = m +
k - 1, instead of m^2 * k^2: tile and kernel, as polynomials, are evaluated at t points per
dimension and multiplied, and the outputs are interpolated.
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


PATCH = 50
"""The time to copy one number into a patch, in multiplications of a matrix product on a CPU."""

LESS = 0.9
"""Squares of outputs are computed together only if that is estimated to take at most `LESS` of the
time."""


def square_for(rows: int, columns: int, size: int, outputs: int) -> int:
    """Return the side of the squares of pixels whose outputs are best computed together, for
    outputs ``[rows, columns, outputs]`` of a k x k kernel and stride 1.

    With squares of s x s pixels, a patch has ``blocks^2`` squares and the product has s * s *
    `outputs` columns. Neighbouring outputs share most of their patches, so fewer numbers are copied
    and the product is less narrow, but it also multiplies by zeros.
    """
    best, least = 1, LESS * size**2 * (PATCH + outputs)
    for side in (2, 4):
        blocks = 1 - (1 - size) // side
        share = -(-rows // side) * -(-columns // side) * side**2 / (rows * columns)
        cost = share * blocks**2 * (PATCH + side**2 * outputs)
        if cost < least:
            best, least = side, cost
    return best


def convolve_squares(x: jax.Array, weight: jax.Array, side: int) -> jax.Array:
    """Return a convolution without padding, ``[B, H - k + 1, W - k + 1, out]``, as one of squares
    of pixels: inputs and outputs have a square's pixels as channels.

    Args:
        x: ``[B, H, W, in]``.
        weight: ``[k, k, in, out]``.
        side: rows and columns of a square.
    """
    _, high, wide, channels = x.shape
    size, outputs = weight.shape[0], weight.shape[3]
    rows, columns = high - size + 1, wide - size + 1
    blocks = 1 - (1 - size) // side
    length = blocks * side
    down, across = (side * (-(-n // side) + blocks - 1) for n in (rows, columns))
    x = jnp.pad(x, ((0, 0), (0, down - high), (0, across - wide), (0, 0)))
    # The kernel of the output at (i, j) of a square is shifted by (i, j).
    rest = length - size
    corners = itertools.product(range(side), repeat=2)
    shifted = [jnp.pad(weight, ((i, rest - i), (j, rest - j), (0, 0), (0, 0))) for i, j in corners]
    kernel = jnp.stack(shifted, 4).reshape(blocks, side, blocks, side, channels, outputs, -1)
    kernel = kernel.transpose(0, 2, 1, 3, 4, 6, 5).reshape(
        blocks, blocks, side**2 * channels, side**2 * outputs
    )
    out: Any = depth_to_space(convolve(space_to_depth(x, side), kernel, 1, "VALID"), side)
    return out[:, :rows, :columns]


MOST_MORE = 1.25
"""One product over all input pixels, whose results are shifted and summed, is cheaper than building
patches if it needs at most this many times the arithmetic."""


@jax.custom_vjp
def product(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Return ``x[M, K] @ weight[K, N]`` for many rows and few columns.

    The weight's gradient has the narrower of its two long matrices on the left. A CPU transposes
    the left one, so this takes half the time.
    """
    return x @ weight


def _product_backward(residuals: tuple[Any, Any], grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, weight = residuals
    rows = (((0,), (0,)), ((), ()))
    if x.shape[1] <= grad.shape[1]:
        by_weight = jax.lax.dot_general(x, grad, rows)
    else:  # the barrier keeps XLA from undoing the order
        by_weight = jax.lax.optimization_barrier(jax.lax.dot_general(grad, x, rows)).T
    return grad @ weight.T, by_weight


product.defvjp(lambda x, weight: (x @ weight, (x, weight)), _product_backward)


def convolve(x: jax.Array, weight: jax.Array, stride: int, padding: str) -> jax.Array:
    """Return a convolution, computed as one matrix product.

    XLA's convolutions become ten times slower on a CPU when differentiated inside a scan; a product
    is fast everywhere. A stride that divides the kernel size is first folded into channels
    (space-to-depth), which leaves few, wide patches.

    Args:
        x: ``[..., H, W, in]``.
        weight: ``[k, k, in, out]``.
        stride: rows and columns between patches.
        padding: ``"VALID"``, or ``"SAME"`` for ceil(H / stride) rows and ceil(W / stride) columns.

    Returns:
        ``[..., H', W', out]``.
    """
    size, _, channels, outputs = weight.shape
    lead = x.shape[:-3]
    x = x.reshape(-1, *x.shape[-3:])
    if padding == "SAME":
        strides = (stride, stride)
        borders = jax.lax.padtype_to_pads(x.shape[1:3], (size, size), strides, padding)
        x = jnp.pad(x, ((0, 0), *borders, (0, 0)))
    batch = len(x)
    rows, columns = ((n - size) // stride + 1 for n in x.shape[1:3])
    if stride > 1 and size % stride == 0:
        blocks = size // stride
        high, wide = rows + blocks - 1, columns + blocks - 1
        x = space_to_depth(x[:, : high * stride, : wide * stride], stride)
        weight = weight.reshape(blocks, stride, blocks, stride, channels, outputs)
        weight = weight.transpose(0, 2, 1, 3, 4, 5).reshape(blocks, blocks, -1, outputs)
        size, stride = blocks, 1
    m = tiles_for(batch, rows, columns, size, x.shape[-1], outputs) if stride == 1 else None
    if m is not None:
        return convolve_tiles(x, weight, m).reshape(*lead, rows, columns, outputs)
    side = square_for(rows, columns, size, outputs) if stride == 1 else 1
    if side > 1:
        return convolve_squares(x, weight, side).reshape(*lead, rows, columns, outputs)
    pixels = x.shape[1] * x.shape[2]
    if stride == 1 and pixels <= MOST_MORE * rows * columns:
        flat = product(
            x.reshape(batch * pixels, -1), weight.transpose(2, 0, 1, 3).reshape(x.shape[-1], -1)
        )
        shares = flat.reshape(*x.shape[:3], size, size, outputs)
        total: Any = shifted_sum(shares, size)
        return total.reshape(*lead, rows, columns, outputs)
    last = (stride * (rows - 1) + 1, stride * (columns - 1) + 1)
    offsets = itertools.product(range(size), repeat=2)
    patches = jnp.concatenate(
        [x[:, i : i + last[0] : stride, j : j + last[1] : stride] for i, j in offsets], axis=-1
    )
    flat = product(patches.reshape(batch * rows * columns, -1), weight.reshape(-1, outputs))
    return flat.reshape(*lead, rows, columns, outputs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def space_to_depth(x: jax.Array, size: int) -> jax.Array:
    """Turn squares of pixels into channels: ``[B, H, W, c]`` to ``[B, H / s, W / s, s * s * c]``.

    It concatenates slices, of which a CPU copies all channels of a pixel at once. With a
    transposition, XLA would compute `x` element by element.
    """
    offsets = itertools.product(range(size), repeat=2)
    return jnp.concatenate([x[:, i::size, j::size] for i, j in offsets], axis=-1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def depth_to_space(x: jax.Array, size: int) -> jax.Array:
    """Turn channels into squares of pixels, the inverse of `space_to_depth`."""
    batch, rows, columns, _ = x.shape
    x = x.reshape(batch, rows, columns, size, size, -1).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(batch, rows * size, columns * size, -1)


space_to_depth.defvjp(
    lambda x, size: (space_to_depth(x, size), None),
    lambda size, residuals, grad: (depth_to_space(grad, size),),
)
depth_to_space.defvjp(
    lambda x, size: (depth_to_space(x, size), None),
    lambda size, residuals, grad: (space_to_depth(grad, size),),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def shifted_sum(shares: jax.Array, size: int) -> jax.Array:
    """Sum pixels' shares ``[B, H, W, k, k, out]`` to outputs ``[B, H - k + 1, W - k + 1, out]``."""
    rows, columns = shares.shape[1] - size + 1, shares.shape[2] - size + 1
    total = jnp.zeros((), shares.dtype)
    for i, j in itertools.product(range(size), repeat=2):
        total = total + shares[:, i : i + rows, j : j + columns, i, j]
    return total


def _shifted_backward(size: int, residuals: None, grad: jax.Array) -> tuple[jax.Array]:
    borders = [(i, size - 1 - i) for i in range(size)]
    # One array is written; the derivative of the slices would sum k * k arrays of its size.
    padded = [jnp.pad(grad, ((0, 0), i, j, (0, 0))) for i, j in itertools.product(borders, borders)]
    batch, rows, columns, outputs = padded[0].shape
    return (jnp.stack(padded, 3).reshape(batch, rows, columns, size, size, outputs),)


shifted_sum.defvjp(lambda shares, size: (shifted_sum(shares, size), None), _shifted_backward)
