"""The final observations of truncated episodes: packed, divided by shard and joined.

They are stored separately from a trajectory's other arrays, because they are few. Their arrays have
a capacity C; unused entries have the index T * N and change no result. The capacity is the smallest
sufficient one of ``least``, 2 * ``least``, 4 * ``least``, ...: it depends only on the trajectory,
and an update is compiled once for each capacity that occurs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatout import tree
from flatout.types import Array, Finals, Obs


def truncations(horizon: int, limit: int | None) -> int:
    """Return how often a time limit of `limit` steps can truncate one environment's episodes within
    `horizon` steps, at least 1. An environment's own code may truncate more often."""
    return 1 if limit is None else horizon // limit + 1


def capacity(count: int, least: int) -> int:
    """Return the capacity for `count` final observations: `least`, doubled until they fit."""
    least = max(least, min(count, 1))  # 0 cannot be doubled
    while least < count:
        least *= 2
    return least


def pack_finals(index: Array, obs: Obs, size: int, least: int) -> Finals:
    """Pack final observations into arrays with a capacity, in the order of their steps.

    Args:
        index: ``[n]``, the position ``t * N + env`` of each.
        obs: ``[n, ...]``, the observations.
        size: T * N of the trajectory.
        least: the smallest capacity.
    """
    count = len(index)
    room = capacity(count, least)
    empty = tree.map(lambda leaf: np.zeros((room, *leaf.shape[1:]), leaf.dtype), obs)
    finals = Finals(empty, np.full((room,), size, np.int32))
    if count:
        order = np.argsort(index, kind="stable")
        finals.index[:count] = index[order]
        tree.put(finals.obs, slice(count), tree.take(obs, order))
    return finals


def used_finals(finals: Finals, size: int) -> tuple[np.ndarray, Obs]:
    """Return the positions ``[n]`` and observations ``[n, ...]`` of the used entries."""
    which = np.flatnonzero((finals.index >= 0) & (finals.index < size))
    return finals.index[which], tree.take(finals.obs, which)


def append_final(finals: Finals, index: int, obs: Obs, size: int) -> Finals:
    """Return the final observations with a further one, `obs` at position `index`."""
    indices, values = used_finals(finals, size)
    values = tree.map(lambda rows, one: np.concatenate([rows, one[None]]), values, obs)
    return pack_finals(np.append(indices, index), values, size, len(finals.index))


def split_finals(finals: Finals, steps: int, num_envs: int, shards: int) -> list[Finals]:
    """Divide the final observations by shard, with the same capacity for all shards."""
    each = num_envs // shards
    index, obs = used_finals(finals, steps * num_envs)
    row, env = np.divmod(index, num_envs)
    shard, env = np.divmod(env, each)
    most = int(np.bincount(shard, minlength=1).max())
    room = capacity(most, len(finals.index) // shards)

    def select(number: int) -> Finals:
        mine = shard == number
        own = tree.take(obs, mine)
        return pack_finals(row[mine] * each + env[mine], own, steps * each, room)

    return [select(number) for number in range(shards)]


def join_finals(parts: Finals, steps: int, each: int) -> Finals:
    """Join the shards' final observations, in the order of the shards: the inverse of
    `split_finals`.

    Args:
        parts: arrays ``[S, C, ...]`` of S shards.
        steps: T.
        each: the number of environments of one shard.
    """
    num_envs = len(parts.index) * each
    used = [
        used_finals(Finals(tree.take(parts.obs, shard), parts.index[shard]), steps * each)
        for shard in range(len(parts.index))
    ]
    index, obs = join_along_envs(used, each, num_envs)
    return pack_finals(index, obs, steps * num_envs, parts.index.size)


def sort_finals(finals: Finals) -> Finals:
    """Sort the entries by their steps; unused ones come last."""
    order = np.argsort(finals.index, kind="stable")
    return Finals(tree.take(finals.obs, order), finals.index[order])


def join_along_envs(
    parts: Sequence[tuple[np.ndarray, Obs]], num_envs: int, total: int, shards: int = 1
) -> tuple[np.ndarray, Obs]:
    """Join trajectories' final observations, with their positions in the joined trajectory.

    Args:
        parts: positions and observations of each trajectory of `num_envs` environments, in the
            order in which the trajectories are joined along the environments of a shard.
        total: the number of environments of the joined trajectory.
        shards: the number of blocks in which the trajectories are joined one by one.
    """
    each, room = num_envs // shards, total // shards
    moved: list[np.ndarray] = []
    for number, (index, _) in enumerate(parts):
        row, env = np.divmod(index, num_envs)
        shard, env = np.divmod(env, each)
        moved.append(row * total + shard * room + number * each + env)
    obs = tree.map(lambda *each: np.concatenate(each), *(obs for _, obs in parts))
    return np.concatenate(moved), obs
