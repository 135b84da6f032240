"""The cells of recurrent policies, which remember what happened earlier in an episode.

A carry is a tuple of arrays ``[B, H]``, the first of which is the cell's output; the initial carry
is zeros. Both cells have the equations and the parameters of PyTorch's layers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from flatout.networks.layers import Draw, Linear

Carry = tuple[Any, ...]
"""The memory of B environments, arrays ``[B, H]``."""

KEEPS = 1.0
"""The initial bias of the gate that keeps the memory: a new cell keeps about 73 % of it at each
step; without a bias it would keep half (Jozefowicz et al., 2015)."""


class GRU(eqx.Module):
    """A gated recurrent unit (Cho et al., 2014), whose carry is ``(output,)``."""

    inputs: Linear
    recurrent: Linear

    def __init__(self, draw: Draw, features: int, size: int) -> None:
        self.inputs = _biased(Linear(draw, features, 3 * size, 1.0), size)
        self.recurrent = Linear(draw, size, 3 * size, 1.0)

    def initial(self, count: int) -> Carry:
        """Return the carry of `count` environments whose episodes begin."""
        return (jnp.zeros((count, self.recurrent.weight.shape[-1])),)

    @staticmethod
    def combine(given: jax.Array, by: jax.Array, carry: Carry) -> Carry:
        """Return the carry after a step, from ``given = inputs(features)`` and ``by =
        recurrent(output)``, both ``[B, 3 H]``, and the carry before it."""
        (h,) = carry
        reset, keep, new = jnp.split(given, 3, -1)
        by_reset, by_keep, by_new = jnp.split(by, 3, -1)
        keep = jax.nn.sigmoid(keep + by_keep)
        new = jnp.tanh(new + jax.nn.sigmoid(reset + by_reset) * by_new)
        return ((1.0 - keep) * new + keep * h,)


class LSTM(eqx.Module):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et
    al., 2000), whose carry is ``(output, cell state)``."""

    inputs: Linear
    recurrent: Linear

    def __init__(self, draw: Draw, features: int, size: int) -> None:
        self.inputs = _biased(Linear(draw, features, 4 * size, 1.0), size)
        self.recurrent = Linear(draw, size, 4 * size, 1.0)

    def initial(self, count: int) -> Carry:
        """Return the carry of `count` environments whose episodes begin."""
        zeros = jnp.zeros((count, self.recurrent.weight.shape[-1]))
        return zeros, zeros

    @staticmethod
    def combine(given: jax.Array, by: jax.Array, carry: Carry) -> Carry:
        """Return the carry after a step, from ``given = inputs(features)`` and ``by =
        recurrent(output)``, both ``[B, 4 H]``, and the carry before it."""
        _, c = carry
        write, keep, new, show = jnp.split(given + by, 4, -1)
        c = jax.nn.sigmoid(keep) * c + jax.nn.sigmoid(write) * jnp.tanh(new)
        return jax.nn.sigmoid(show) * jnp.tanh(c), c


Cell = GRU | LSTM

Combine = Callable[[jax.Array, jax.Array, Carry], Carry]
"""`combine` of a cell."""

CELLS: dict[str, type[Cell]] = {"gru": GRU, "lstm": LSTM}
"""The cells by the name of the setting."""


def _biased(layer: Linear, size: int) -> Linear:
    """Return the layer with the bias `KEEPS` for its second gate, which keeps the memory."""
    layer.bias[size : 2 * size] += KEEPS
    return layer


def step(cell: Cell, features: jax.Array, carry: Carry) -> Carry:
    """Return the carry after a step with features ``[B, F]``."""
    return cell.combine(cell.inputs(features), cell.recurrent(carry[0]), carry)


def remember(cell: Cell, features: jax.Array, carry: Carry, begins: jax.Array) -> Carry:
    """Run a cell through L steps, with the initial carry where an episode begins.

    Args:
        features: ``[L, B, F]``.
        carry: that before the first step.
        begins: ``[L, B]`` bool, the steps with which an episode begins.

    Returns:
        The carries after each step, arrays ``[L, B, H]``.
    """
    return _scan(cell.combine, cell.recurrent, cell.inputs(features), carry, begins)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scan(
    combine: Combine, recurrent: Linear, given: jax.Array, carry: Carry, begins: jax.Array
) -> Carry:
    """Return the carries after each step, for ``given [L, B, G]``, the inputs of the gates.

    Its gradient computes that of the weights after the loop, as one product over all steps, and
    the activations again: within the loop, each step would add to an array of the weights' size.
    """

    def forward(carry: Carry, at: tuple[jax.Array, jax.Array]) -> tuple[Carry, Carry]:
        given, begins = at
        carry = forgotten(carry, begins)
        carry = combine(given, recurrent(carry[0]), carry)
        return carry, carry

    return jax.lax.scan(forward, carry, (given, begins))[1]


def _scan_forward(
    combine: Combine, recurrent: Linear, given: jax.Array, carry: Carry, begins: jax.Array
) -> tuple[Any, Any]:
    after = _scan(combine, recurrent, given, carry, begins)
    return after, (recurrent, given, carry, begins, after)


def _scan_backward(combine: Combine, residuals: Any, slopes: Carry) -> tuple[Any, ...]:
    recurrent, given, carry, begins, after = residuals
    before = tuple(
        jnp.concatenate([first[None], later[:-1]])
        for first, later in zip(carry, after, strict=True)
    )
    before = jax.vmap(forgotten)(before, begins)
    by, of_recurrent = jax.vjp(lambda layer, h: layer(h), recurrent, before[0])

    def backward(later: Carry, at: Any) -> tuple[Carry, tuple[jax.Array, jax.Array]]:
        slope, begins, *arguments = at
        _, of_step = jax.vjp(combine, *arguments)
        of_given, of_by, (of_output, *of_rest) = of_step(
            tuple(a + b for a, b in zip(later, slope, strict=True))
        )
        of_output = of_output + of_by @ recurrent.weight
        return forgotten((of_output, *of_rest), begins), (of_given, of_by)

    none = jax.tree.map(jnp.zeros_like, carry)
    of_carry, (of_given, of_by) = jax.lax.scan(
        backward, none, (slopes, begins, given, by, before), reverse=True
    )
    of_weights, _ = of_recurrent(of_by)
    return of_weights, of_given, of_carry, None


_scan.defvjp(_scan_forward, _scan_backward)


def remember_rows(cell: Cell, features: jax.Array, carry: Carry, begins: jax.Array) -> jax.Array:
    """Return a cell's outputs ``[B * L, H]`` for rows that are one sequence of L steps after
    another.

    Args:
        features: ``[B * L, F]``.
        carry: that before the first step of each sequence.
        begins: ``[B, L]`` bool, the steps with which an episode begins.
    """
    count, length = begins.shape
    steps = jnp.swapaxes(features.reshape(count, length, -1), 0, 1)
    outputs = remember(cell, steps, carry, begins.T)[0]
    return jnp.swapaxes(outputs, 0, 1).reshape(count * length, -1)


def forgotten(carry: Carry, begins: jax.Array) -> Carry:
    """Return the carry with zeros for the environments in the mask ``begins [B]``."""
    return tuple(jnp.where(begins[:, None], 0.0, leaf) for leaf in carry)
