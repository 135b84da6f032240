"""The choice of rows to learn from, uniform or by priority: a pure function of keys and counters.

Host replay and device replay call the same functions, so that both draw the same rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout.engine.replay.ring import RingLayout
from flatout.randomness import hashes
from flatout.types import Array

EPSILON = 1e-6
"""Added to errors, so that none has probability 0 (Schaul et al., 2016, section 3.3)."""


class Priorities(NamedTuple):
    """The priorities of all transitions, as a tree of sums.

    Attributes:
        tree: ``[2 * leaves]`` float32. The second half has the transitions' priorities, to the
            power alpha. Entry k is the sum of entries 2k and 2k + 1; so entry 1 is the sum of all.
        largest: the largest priority so far, which new transitions get.
    """

    tree: Array
    largest: Array


class Drawn(NamedTuple):
    """The draws for one update: rows, environments and importance weights, each ``[B]``."""

    row: Array
    env: Array
    weight: Array


def leaf_count(layout: RingLayout) -> int:
    """Return the number of the tree's leaves: the smallest power of two >= L * N, at least 2."""
    return 1 << max(layout.length * layout.num_envs - 1, 1).bit_length()


def empty_priorities(layout: RingLayout) -> Priorities:
    """Return the priorities of an empty ring, as NumPy arrays."""
    return Priorities(np.zeros(2 * leaf_count(layout), np.float32), np.ones((), np.float32))


def bits(key: jax.Array, update: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Return two arrays of random words, uint32 ``[count]``, for one update.

    Args:
        key: raw key data, uint32 ``[2]``.
        update: the update's number since the run's start, int32.
        count: the number of hashes; each gives one word for each array.
    """
    first = jnp.full((count,), update, jnp.uint32)
    return hashes(key, first, jnp.arange(count, dtype=jnp.uint32))


def draw(
    layout: RingLayout,
    key: jax.Array,
    update: jax.Array,
    rows_written: jax.Array,
    count: int,
    priorities: Priorities | None,
    beta: jax.Array,
) -> Drawn:
    """Draw B transitions for one update.

    Uniform: every stored step of every environment is equally likely, up to a relative error of
    2^-32 times the number of rows. By priority: the sum of all priorities is divided into B equal
    parts, and one transition is drawn from each. The weights are ``(1 / (M * P(i)))^beta`` for M
    transitions, divided by the largest in the batch (Schaul et al., 2016, sections 3.3 and 3.4).

    Args:
        key: raw key data, uint32 ``[2]``.
        update: the update's number since the run's start, int32.
        rows_written: the number of rows ever stored, int32.
        count: B.
        priorities: the priorities, or None for uniform draws.
        beta: the exponent of the weights.
    """
    first, rows = layout.window(rows_written)
    word, other = bits(key, update, count)
    if priorities is None:
        row = first + (word % rows.astype(jnp.uint32)).astype(jnp.int32)
        env = (other % np.uint32(layout.num_envs)).astype(jnp.int32)
        return Drawn(row, env, jnp.ones((count,), jnp.float32))
    tree = priorities.tree
    share = ((word >> 9).astype(jnp.float32) + 0.5) * np.float32(2.0**-23)
    target = (jnp.arange(count) + share) * (tree[1] / count)

    def descend(_: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        node, target = carry
        left, right = tree[2 * node], tree[2 * node + 1]
        go = (target >= left) & (right > 0)  # rounding must not lead into an empty half
        return 2 * node + go, jnp.where(go, target - left, target)

    # A loop, because the unrolled steps take a quarter of a minute to compile.
    depth = leaf_count(layout).bit_length() - 1
    node, _ = jax.lax.fori_loop(0, depth, descend, (jnp.ones((count,), jnp.int32), target))
    place = node - leaf_count(layout)
    chance = tree[node] / tree[1]
    size = (rows * layout.num_envs).astype(jnp.float32)
    weight = (size * chance) ** -beta
    position, env = place // layout.num_envs, place % layout.num_envs
    row = first + (position - first) % layout.length
    return Drawn(row, env, weight / weight.max())


def _set_leaves(layout: RingLayout, tree: Array, place: Array, value: Array) -> Array:
    """Set the priorities of the leaves `place` ``[k]`` and recompute the sums above them."""
    node = place + leaf_count(layout)
    tree = tree.at[node].set(value)

    def add_up(_: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        tree, node = carry
        node = node // 2
        return tree.at[node].set(tree[2 * node] + tree[2 * node + 1]), node

    return jax.lax.fori_loop(0, leaf_count(layout).bit_length() - 1, add_up, (tree, node))[0]


def insert_priorities(
    layout: RingLayout, priorities: Priorities, rows_written: jax.Array, rows: int
) -> Priorities:
    """Give new rows the largest priority, and rows that can no longer be sampled the priority 0.

    Args:
        rows_written: the number of rows ever stored, without the new ones.
        rows: T, the number of new rows.
    """
    env = jnp.arange(layout.num_envs)
    new = rows_written + jnp.arange(rows)

    def places(number: jax.Array) -> jax.Array:
        return (number[:, None] % layout.length * layout.num_envs + env).reshape(-1)

    gone = jnp.maximum(new - layout.rows, -layout.length) % layout.length
    tree = _set_leaves(layout, priorities.tree, places(gone), jnp.zeros(()))
    return priorities._replace(tree=_set_leaves(layout, tree, places(new), priorities.largest))


def set_priorities(
    layout: RingLayout,
    priorities: Priorities,
    row: jax.Array,
    env: jax.Array,
    error: jax.Array,
    alpha: jax.Array,
) -> Priorities:
    """Set the priorities of sampled transitions ``[B]`` to ``(error + EPSILON)^alpha``."""
    place = row % layout.length * layout.num_envs + env
    value = (error + EPSILON) ** alpha
    tree = _set_leaves(layout, priorities.tree, place, value)
    return Priorities(tree, jnp.maximum(priorities.largest, value.max()))


def leaves(layout: RingLayout, priorities: Priorities) -> np.ndarray:
    """Return the transitions' priorities ``[L * N]``, or ``[S, L * N]`` for S shards."""
    start = leaf_count(layout)
    return np.asarray(priorities.tree)[..., start : start + layout.length * layout.num_envs]


def saved(layout: RingLayout, priorities: Priorities | None) -> dict[str, np.ndarray]:
    """Return the arrays for a checkpoint: the largest priority, and the transitions' priorities
    ``[L, N]``, or ``[L, S * N]`` for S shards, from which `restored` computes the sums."""
    if priorities is None:
        return {}
    shaped = leaves(layout, priorities).reshape(-1, layout.length, layout.num_envs)
    return {
        "priorities": np.concatenate(list(shaped), 1), "largest": np.asarray(priorities.largest)
    }  # fmt: skip


def restored(
    layout: RingLayout, arrays: dict[str, np.ndarray], end: int, rows_written: int
) -> Priorities:
    """Return the priorities, as NumPy arrays, from the arrays of `saved`.

    Args:
        end: the number of rows ever stored in the ring that was saved, which may be smaller.
        rows_written: the number that this ring gives its next row; see `RingCounters.restore`.
    """
    largest, given = np.asarray(arrays["largest"], np.float32), arrays["priorities"]
    number = rows_written - 1 - np.arange(min(layout.length, len(given)))
    rows = np.zeros((layout.length, *given.shape[1:]), np.float32)
    rows[number % layout.length] = given[(number + end - rows_written) % len(given)]
    whole = rows.reshape(layout.length, -1, layout.num_envs)
    trees = [_build_tree(layout, whole[:, shard].reshape(-1)) for shard in range(whole.shape[1])]
    return Priorities(np.stack(trees) if largest.ndim else trees[0], largest)


def _build_tree(layout: RingLayout, priorities: np.ndarray) -> np.ndarray:
    size = leaf_count(layout)
    tree = np.zeros(2 * size, np.float32)
    tree[size : size + len(priorities)] = priorities
    while size > 1:
        tree[size // 2 : size] = tree[size : 2 * size : 2] + tree[size + 1 : 2 * size : 2]
        size //= 2
    return tree
