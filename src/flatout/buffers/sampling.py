"""Which rows to learn from: uniform or by priority, as a pure function of keys and counters.

Host replay and device replay call the same functions: where the data lies does not change what
is drawn.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout.buffers.ring import Geometry
from flatout.hashes import hashes
from flatout.types import Array

EPSILON = 1e-6
"""Added to errors, so that every transition keeps a chance (Schaul et al., 2016, eq. 1)."""


class Priorities(NamedTuple):
    """Attributes:
    tree: ``[2 * leaves]`` float32; entry 1 is the sum of all, entries 2k and 2k + 1 add up to
        entry k, the last half are the transitions', already to the power alpha.
    largest: the largest priority ever given, which new transitions get.
    """

    tree: Array
    largest: Array


class Drawn(NamedTuple):
    """Rows, environments and importance weights ``[B]``."""

    row: Array
    env: Array
    weight: Array


def leaf_count(geometry: Geometry) -> int:
    """Leaves of the tree: a power of two with room for every position."""
    return 1 << max(geometry.length * geometry.num_envs - 1, 1).bit_length()


def empty_priorities(geometry: Geometry) -> Priorities:
    """Of an empty ring (NumPy)."""
    return Priorities(np.zeros(2 * leaf_count(geometry), np.float32), np.ones((), np.float32))


def bits(key: jax.Array, update: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Two random words uint32 ``[count]`` for an update: one hash each.

    Args:
        key: raw key data, uint32 ``[2]``.
        update: its number since the run's start, int32.
        count: how many.
    """
    first = jnp.full((count,), update, jnp.uint32)
    return hashes(key, first, jnp.arange(count, dtype=jnp.uint32))


def draw(
    geometry: Geometry,
    key: jax.Array,
    update: jax.Array,
    head: jax.Array,
    count: int,
    priorities: Priorities | None,
    beta: jax.Array,
) -> Drawn:
    """Choose B transitions for one update.

    Uniform: every stored step of every environment is equally likely (to 2^-32 of the rows).
    By priority: one draw from each of B equal parts of the total, weights
    ``(1 / (M * P(i)))^beta`` over the largest in the batch (Schaul et al., 2016, section 3.4).

    Args:
        key: raw key data, uint32 ``[2]``.
        update: the update's number since the run's start, int32.
        head: rows ever ingested, int32.
        count: B.
        priorities: or None for uniform.
        beta: exponent of the weights.
    """
    first, rows = geometry.window(head)
    word, other = bits(key, update, count)
    if priorities is None:
        row = first + (word % rows.astype(jnp.uint32)).astype(jnp.int32)
        env = (other % np.uint32(geometry.num_envs)).astype(jnp.int32)
        return Drawn(row, env, jnp.ones((count,), jnp.float32))
    tree = priorities.tree
    share = ((word >> 9).astype(jnp.float32) + 0.5) * np.float32(2.0**-23)
    target = (jnp.arange(count) + share) * (tree[1] / count)

    def descend(_: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        node, target = carry
        left, right = tree[2 * node], tree[2 * node + 1]
        go = (target >= left) & (right > 0)  # never into an empty half, whatever the rounding
        return 2 * node + go, jnp.where(go, target - left, target)

    # A loop: written out, it takes a quarter of a minute to compile.
    depth = leaf_count(geometry).bit_length() - 1
    node, _ = jax.lax.fori_loop(0, depth, descend, (jnp.ones((count,), jnp.int32), target))
    place = node - leaf_count(geometry)
    chance = tree[node] / tree[1]
    size = (rows * geometry.num_envs).astype(jnp.float32)
    weight = (size * chance) ** -beta
    position, env = place // geometry.num_envs, place % geometry.num_envs
    row = first + (position - first) % geometry.length
    return Drawn(row, env, weight / weight.max())


def _set(geometry: Geometry, tree: Array, place: Array, value: Array) -> Array:
    """Give leaves ``[k]`` new priorities and mend the sums above them."""
    node = place + leaf_count(geometry)
    tree = tree.at[node].set(value)

    def mend(_: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        tree, node = carry
        node = node // 2
        return tree.at[node].set(tree[2 * node] + tree[2 * node + 1]), node

    return jax.lax.fori_loop(0, leaf_count(geometry).bit_length() - 1, mend, (tree, node))[0]


def insert_priorities(
    geometry: Geometry, priorities: Priorities, head: jax.Array, rows: int
) -> Priorities:
    """New rows get the largest priority; those that can no longer be sampled lose theirs.

    Args:
        head: rows ever ingested, the new ones not counted.
        rows: T, how many are new.
    """
    env = jnp.arange(geometry.num_envs)
    new = head + jnp.arange(rows)

    def places(number: jax.Array) -> jax.Array:
        return (number[:, None] % geometry.length * geometry.num_envs + env).reshape(-1)

    gone = jnp.maximum(new - geometry.rows, -geometry.length) % geometry.length
    tree = _set(geometry, priorities.tree, places(gone), jnp.zeros(()))
    return priorities._replace(tree=_set(geometry, tree, places(new), priorities.largest))


def set_priorities(
    geometry: Geometry,
    priorities: Priorities,
    row: jax.Array,
    env: jax.Array,
    error: jax.Array,
    alpha: jax.Array,
) -> Priorities:
    """Give sampled transitions the priorities of their errors ``[B]``."""
    place = row % geometry.length * geometry.num_envs + env
    value = (error + EPSILON) ** alpha
    tree = _set(geometry, priorities.tree, place, value)
    return Priorities(tree, jnp.maximum(priorities.largest, value.max()))


def leaves(geometry: Geometry, priorities: Priorities) -> np.ndarray:
    """The transitions' priorities ``[L * N]``, of S shards ``[S, L * N]``."""
    start = leaf_count(geometry)
    return np.asarray(priorities.tree)[..., start : start + geometry.length * geometry.num_envs]


def saved(geometry: Geometry, priorities: Priorities | None) -> dict[str, np.ndarray]:
    """What a checkpoint needs: the transitions' priorities ``[L, N]``, of which the sums follow.

    Of S shards the environments lie side by side: ``[L, S * N]``.
    """
    if priorities is None:
        return {}
    shaped = leaves(geometry, priorities).reshape(-1, geometry.length, geometry.num_envs)
    return {
        "priorities": np.concatenate(list(shaped), 1), "largest": np.asarray(priorities.largest)
    }  # fmt: skip


def restored(geometry: Geometry, arrays: dict[str, np.ndarray]) -> Priorities:
    """Saved priorities (NumPy), of one store or of shards."""
    largest = np.asarray(arrays["largest"], np.float32)
    whole = arrays["priorities"].reshape(geometry.length, -1, geometry.num_envs)
    trees = [_tree(geometry, whole[:, shard].reshape(-1)) for shard in range(whole.shape[1])]
    return Priorities(np.stack(trees) if largest.ndim else trees[0], largest)


def _tree(geometry: Geometry, priorities: np.ndarray) -> np.ndarray:
    size = leaf_count(geometry)
    tree = np.zeros(2 * size, np.float32)
    tree[size : size + len(priorities)] = priorities
    while size > 1:
        tree[size // 2 : size] = tree[size : 2 * size : 2] + tree[size + 1 : 2 * size : 2]
        size //= 2
    return tree
