"""Replay in the learning devices' memory, in S shards: each device has its own shards' rings."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import jax
import numpy as np

from flatout.buffers.base import check_shards
from flatout.buffers.device import DeviceReplay
from flatout.buffers.sharded import ShardedBuffer, stacked
from flatout.types import RowSource, Trajectory

ENV_AXIS = {"frames": 0, "age": 0, "priorities": 1}
"""The axis of environments in what a shard keeps; shards' other arrays are stacked."""


class ShardedReplay(ShardedBuffer):
    """Shards whose rings have one shape, though only one shard's episodes were cut often.

    What it keeps is what `HostReplay` of as many shards does.

    Args:
        shards: the shards' buffers.
        envs: N / S.
    """

    def __init__(self, shards: Sequence[DeviceReplay], envs: int) -> None:
        super().__init__(shards, envs)
        self._replays = list(shards)

    def device_state(self) -> Any:
        """The shards' empty rings."""
        return stacked([shard.device_state() for shard in self._replays], 0)

    def ingest(self, trajectory: Trajectory) -> None:
        """Each shard takes in its own environments' steps."""
        super().ingest(trajectory)
        self._make_room()

    def state(
        self, device_state: Any
    ) -> tuple[dict[str, np.ndarray], dict[str, Any], RowSource | None]:
        """The shards' own, environments side by side."""
        kept, said, rows = zip(
            *(
                shard.state(shard_of(device_state, number))
                for number, shard in enumerate(self._replays)
            ),
            strict=True,
        )
        arrays = {
            name: np.concatenate([own[name] for own in kept], ENV_AXIS[name]) if name in ENV_AXIS
            else np.stack([own[name] for own in kept])
            for name in kept[0]
        }  # fmt: skip
        room = sum(one["room"] for one in said)
        return arrays, said[0] | {"room": room, "shards": len(said)}, JoinedRows(rows)

    def restore(
        self, arrays: dict[str, np.ndarray], data: dict[str, Any], rows: RowSource | None
    ) -> Any:
        """Take over such a state; returns the device state."""
        check_shards(data, len(self._replays))
        states, count = [], len(self._replays)
        said = data | {"room": data["room"] // count}
        for number, shard in enumerate(self._replays):
            own = {
                name: np.split(array, count, ENV_AXIS[name])[number] if name in ENV_AXIS
                else array[number]
                for name, array in arrays.items()
            }  # fmt: skip
            own_rows = None if rows is None else ShardRows(rows, number * self._envs, self._envs)
            states.append(shard.restore(own, said, own_rows))
        return self._together(states)

    def truncate(
        self, env: int, final_obs: np.ndarray, first_obs: np.ndarray, device_state: Any
    ) -> Any:
        """The environment's shard is told; the device state moves through host memory."""
        number, own = divmod(env, self._envs)
        states = self._apart(device_state)
        states[number] = self._replays[number].truncate(own, final_obs, first_obs, states[number])
        return self._together(states)

    def grown(self, device_state: Any) -> Any:
        """The device state, with room for the final observations of the shard that has most."""
        if self._replays[0].fits(device_state.ring.finals.shape[1]):
            return device_state
        return self._together(self._apart(device_state))

    def _apart(self, tree: Any) -> list[Any]:
        """Each shard's arrays in host memory, all moved there once."""
        host = jax.tree.map(np.asarray, tree)
        return [jax.tree.map(itemgetter(number), host) for number in range(len(self._replays))]

    def _together(self, states: list[Any]) -> Any:
        self._make_room()
        for shard in self._replays:
            shard.reserve()
        return stacked(
            [shard.grown(own) for shard, own in zip(self._replays, states, strict=True)], 0
        )

    def _make_room(self) -> None:
        room = max(shard.room for shard in self._replays)
        for shard in self._replays:
            shard.make_room(room)


# --- Shards of arrays and rows -------------------------------------------------------------------


def shard_of(device_state: Any, number: int) -> Any:
    """One shard's arrays of all shards' in device memory, without moving them."""
    return jax.tree.map(lambda leaf: ShardOf(leaf, number), device_state)


class ShardOf:
    """One shard's array ``[n, ...]`` of a sharded ``[S, n, ...]``, read piece by piece."""

    def __init__(self, array: jax.Array, number: int) -> None:
        for shard in array.addressable_shards:
            first, end, _ = shard.index[0].indices(array.shape[0])
            if first <= number < end:
                self._data, self._at = shard.data, number - first
        self.shape, self.dtype = array.shape[1:], array.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._data[self._at], dtype)

    def rows(self, start: int, size: int) -> np.ndarray:
        """Some of its entries, in host memory."""
        if next(iter(self._data.devices())).platform == "cpu":
            return np.asarray(self._data)[self._at, start : start + size]
        corner = (self._at, start, *(0 for _ in self.shape[1:]))
        piece = jax.lax.dynamic_slice(self._data, corner, (1, size, *self.shape[1:]))
        return np.asarray(piece)[0]


class JoinedRows:
    """Several shards' rows as one store's: environments side by side."""

    def __init__(self, sources: Sequence[RowSource]) -> None:
        self._sources = list(sources)

    @property
    def stored(self) -> tuple[int, int]:
        """The shards' own: they take in as many rows each."""
        return self._sources[0].stored

    def read(self, first: int, end: int) -> dict[str, np.ndarray]:
        """The rows ``first .. end - 1`` of all environments."""
        shards = [source.read(first, end) for source in self._sources]
        joined = {
            name: np.concatenate([shard[name] for shard in shards], 1)
            for name in shards[0]
            if name != "finals"
        }
        num_envs = shards[0]["truncated"].shape[1]
        places = [
            np.argwhere(shard["truncated"]) + np.array([0, number * num_envs])
            for number, shard in enumerate(shards)
        ]
        row, env = np.concatenate(places).T
        finals = np.concatenate([shard["finals"] for shard in shards])
        return joined | {"finals": finals[np.lexsort((env, row))]}


class ShardRows:
    """The rows of some environments of a store."""

    def __init__(self, rows: RowSource, first: int, num_envs: int) -> None:
        self._rows, self._columns = rows, slice(first, first + num_envs)

    @property
    def stored(self) -> tuple[int, int]:
        """As many rows as the whole store has."""
        return self._rows.stored

    def read(self, first: int, end: int) -> dict[str, np.ndarray]:
        """The rows ``first .. end - 1`` of these environments."""
        read = self._rows.read(first, end)
        env = np.argwhere(read["truncated"])[:, 1]
        mine = (env >= self._columns.start) & (env < self._columns.stop)
        own = {name: array[:, self._columns] for name, array in read.items() if name != "finals"}
        return own | {"finals": read["finals"][mine]}
