"""The final observations of truncated episodes: the only code that packs, moves and divides them.

A trajectory stores them apart, because they are few. Their arrays have a capacity; unused entries
have the index T * N and change no result. The capacity is the smallest that suffices of ``least``,
twice ``least``, four times ``least``, ...: it follows from the trajectory alone, and an update is
compiled once for each capacity that occurs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatout.types import Array, Finals


def truncations(horizon: int, limit: int | None) -> int:
    """How often a time limit can truncate one environment's episodes within `horizon` steps, at
    least 1; environments may truncate more often by themselves."""
    return 1 if limit is None else horizon // limit + 1


def capacity(count: int, least: int) -> int:
    """The capacity for `count` final observations: `least`, doubled until they fit."""
    while least < count:
        least *= 2
    return least


def packed(index: Array, obs: Array, size: int, least: int) -> Finals:
    """Arrays of final observations with their capacity, in the order of their steps.

    Args:
        index: ``[n]``, the position ``t * N + env`` of each.
        obs: ``[n, ...]``.
        size: T * N of the trajectory.
        least: the smallest capacity.
    """
    count = len(index)
    room = capacity(count, least)
    finals = Finals(np.zeros((room, *obs.shape[1:]), obs.dtype), np.full((room,), size, np.int32))
    if count:
        order = np.argsort(index, kind="stable")
        finals.index[:count], finals.obs[:count] = index[order], obs[order]
    return finals


def used(finals: Finals, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The positions and observations of the used entries."""
    which = np.flatnonzero((finals.index >= 0) & (finals.index < size))
    return finals.index[which], finals.obs[which]


def appended(finals: Finals, index: int, obs: np.ndarray, size: int) -> Finals:
    """The final observations with one more, of the last step."""
    indices, values = used(finals, size)
    indices, values = np.append(indices, index), np.concatenate([values, obs[None]])
    return packed(indices, values, size, len(finals.index))


def divided(finals: Finals, steps: int, num_envs: int, shards: int) -> list[Finals]:
    """The final observations of each shard's environments, with equal capacities."""
    each = num_envs // shards
    index, obs = used(finals, steps * num_envs)
    row, env = np.divmod(index, num_envs)
    shard, env = np.divmod(env, each)
    most = int(np.bincount(shard, minlength=1).max())
    room = capacity(most, len(finals.index) // shards)

    def of(number: int) -> Finals:
        mine = shard == number
        return packed(row[mine] * each + env[mine], obs[mine], steps * each, room)

    return [of(number) for number in range(shards)]


def joined(parts: Finals, steps: int, each: int) -> Finals:
    """The inverse of `divided`.

    Args:
        parts: of S shards ``[S, C, ...]``.
        steps: T.
        each: the environments of one shard.
    """
    shards = len(parts.index)
    row, env = np.divmod(parts.index, each)
    number = np.arange(shards)[:, None]
    index = np.where(row < steps, (row * shards + number) * each + env, steps * shards * each)
    obs = parts.obs.reshape(-1, *parts.obs.shape[2:])
    return Finals(obs, index.reshape(-1).astype(np.int32))


def in_order(finals: Finals) -> Finals:
    """The same entries in the order of their steps, unused ones last."""
    order = np.argsort(finals.index, kind="stable")
    return Finals(finals.obs[order], finals.index[order])


def side_by_side(parts: Sequence[tuple[np.ndarray, np.ndarray]], num_envs: int, total: int) -> (
    tuple[np.ndarray, np.ndarray]
):  # fmt: skip
    """The positions and observations of trajectories whose environments lie side by side.

    Args:
        parts: positions and observations of each trajectory of `num_envs` environments, in the
            order of their environments.
        total: environments of all trajectories together.
    """
    moved: list[np.ndarray] = []
    for number, (index, _) in enumerate(parts):
        row, env = np.divmod(index, num_envs)
        moved.append(row * total + number * num_envs + env)
    return np.concatenate(moved), np.concatenate([obs for _, obs in parts])
