"""How recurrent networks run through a trajectory, and the sequences from which they learn."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flatout import tree
from flatout.algorithms.common.actor_critic import Memory, Networks
from flatout.networks.encoder import Encoder
from flatout.networks.memory import Carry, Cell, forgotten, remember, step
from flatout.types import Obs

BLOCK = 1024
"""Boards whose values are computed at once on a CPU. One-hot encoding makes a board larger (16
times for Snake), and larger blocks would not fit in the cache."""


class Remembered(NamedTuple):
    """Values of a trajectory by recurrent networks, and their carries within it.

    Attributes:
        values: the values ``[T * N + N + C]`` of its `obs`, its `last_obs` and its `finals`.
        memory: that of the trajectory's sequences, in the order of `by_sequence`.
        critic: the critic's carry before the next trajectory; None if it has no cell.
    """

    values: jax.Array
    memory: Memory
    critic: Carry | None


def remember_trajectory(
    encoder: Encoder, networks: Networks, x: Obs, carries: tuple[Carry, Carry | None],
    done: jax.Array, final_index: jax.Array, *, length: int,
) -> Remembered:  # fmt: skip
    """Run recurrent networks through a trajectory.

    Args:
        x: the prepared observations ``[T * N + N + C, ...]``, in the order of the values.
        carries: before the first step, the actor's, and the critic's if it has a cell.
        done: ``[T, N]`` bool, the steps after which the carry is the initial one.
        final_index: ``[C]`` int32, the positions ``t * N + n`` of the steps after which the final
            observations were seen.
        length: L, the steps of a sequence.
    """
    actor, critic = networks
    horizon, count = done.shape
    begins = jnp.concatenate([jnp.zeros_like(done[:1]), done])  # the last row is `last_obs`

    def run(cell: Cell, features: jax.Array, carry: Carry) -> Carry:
        steps = features[: begins.size].reshape(*begins.shape, -1)
        return remember(cell, steps, carry, begins)

    def starts(before: jax.Array, after: jax.Array) -> jax.Array:
        later = after[length - 1 : horizon - 1 : length]
        return jnp.concatenate([before[None], later]).reshape(-1, before.shape[-1])

    cell, (carry, critic_carry), following = actor.cell, carries, None
    assert cell is not None
    features = in_blocks(encoder, functools.partial(encoder.features, actor.torso), x)
    after = run(cell, features, carry)
    carry = jax.tree.map(starts, carry, after)
    if critic.cell is not None:
        assert critic_carry is not None
        if critic.torso is not None:
            features = in_blocks(encoder, functools.partial(encoder.features, critic.torso), x)
        cell, after = critic.cell, run(critic.cell, features, critic_carry)
        critic_carry = jax.tree.map(starts, critic_carry, after)
        following = forgotten(tuple(leaf[-2] for leaf in after), done[-1])
    after = tuple(leaf.reshape(begins.size, -1) for leaf in after)
    before_finals = tuple(leaf.at[final_index].get(mode="clip") for leaf in after)
    finals = step(cell, features[begins.size :], before_finals)[0]
    values = critic.head(jnp.concatenate([after[0], finals]))[:, 0]
    of_sequences = by_sequence(begins[:-1].reshape(-1), count, length).reshape(-1, length)
    return Remembered(values, Memory(carry, critic_carry, of_sequences), following)


def by_sequence(leaf: jax.Array, count: int, length: int) -> jax.Array:
    """Return rows ``[T * N, ...]``, N environments of a step after another, in the order of
    sequences of `length` steps: the first steps of each of `count` environments, then the next."""
    parts = leaf.reshape(-1, length, count, *leaf.shape[1:])
    return jnp.swapaxes(parts, 1, 2).reshape(leaf.shape)


def in_blocks(encoder: Encoder, function: Callable[[Any], jax.Array], x: Obs) -> jax.Array:
    """Return ``function(x)`` of prepared observations ``[B, ...]``; that of many boards is computed
    in blocks on a CPU."""
    if not encoder.has_cells or len(tree.first(x)) <= 2 * BLOCK:
        return function(x)
    return jax.lax.platform_dependent(
        x, cpu=lambda x: apply_in_blocks(function, x), default=lambda x: function(x)
    )


def apply_in_blocks(function: Callable[[Obs], jax.Array], rows: Obs) -> jax.Array:
    """Compute ``function(rows)``, BLOCK rows at a time, so that activations stay in the cache."""
    size = len(tree.first(rows))
    count = -(-size // BLOCK)

    def parted(leaf: jax.Array) -> jax.Array:
        padding = [(0, count * BLOCK - size), *((0, 0),) * (leaf.ndim - 1)]
        return jnp.pad(leaf, padding).reshape(count, BLOCK, *leaf.shape[1:])

    found = jax.lax.map(function, tree.map(parted, rows))
    return found.reshape(-1, *found.shape[2:])[:size]
