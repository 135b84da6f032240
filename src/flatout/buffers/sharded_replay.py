"""Replay in the learning devices' memory, in S parts: each device has its own parts' rings."""

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

LANES = {"frames": 0, "age": 0, "priorities": 1}
"""The axis of lanes in what a part keeps; parts' other arrays are stacked."""


class ShardedReplay(ShardedBuffer):
    """Parts whose rings have one shape, though only one part's episodes were cut often.

    What it keeps is what `HostReplay` of as many parts does.

    Args:
        parts: the parts' buffers.
        envs: N / S.
    """

    def __init__(self, parts: Sequence[DeviceReplay], envs: int) -> None:
        super().__init__(parts, envs)
        self._replays = list(parts)

    def held(self) -> Any:
        """The parts' empty rings."""
        return stacked([part.held() for part in self._replays], 0)

    def book(self, trajectory: Trajectory) -> None:
        """Each part takes in its own environments' steps."""
        super().book(trajectory)
        self._make_room()

    def state(self, held: Any) -> tuple[dict[str, np.ndarray], dict[str, Any], RowSource | None]:
        """The parts' own, lanes side by side."""
        kept, said, rows = zip(
            *(part.state(part_of(held, number)) for number, part in enumerate(self._replays)),
            strict=True,
        )
        arrays = {
            name: np.concatenate([own[name] for own in kept], LANES[name]) if name in LANES
            else np.stack([own[name] for own in kept])
            for name in kept[0]
        }  # fmt: skip
        room = sum(one["room"] for one in said)
        return arrays, said[0] | {"room": room, "shards": len(said)}, JoinedRows(rows)

    def restore(
        self, arrays: dict[str, np.ndarray], data: dict[str, Any], rows: RowSource | None
    ) -> Any:
        """Take over such a state; returns what is held."""
        check_shards(data, len(self._replays))
        held, count = [], len(self._replays)
        said = data | {"room": data["room"] // count}
        for number, part in enumerate(self._replays):
            own = {
                name: np.split(array, count, LANES[name])[number] if name in LANES
                else array[number]
                for name, array in arrays.items()
            }  # fmt: skip
            lanes = None if rows is None else PartRows(rows, number * self._envs, self._envs)
            held.append(part.restore(own, said, lanes))
        return self._together(held)

    def cut(self, env: int, final_obs: np.ndarray, first_obs: np.ndarray, held: Any) -> Any:
        """The environment's part is told; what is held moves through host memory."""
        number, own = divmod(env, self._envs)
        parts = self._apart(held)
        parts[number] = self._replays[number].cut(own, final_obs, first_obs, parts[number])
        return self._together(parts)

    def grown(self, held: Any) -> Any:
        """What is held, with room for the final observations of the part that has most."""
        if self._replays[0].fits(held.ring.finals.shape[1]):
            return held
        return self._together(self._apart(held))

    def _apart(self, tree: Any) -> list[Any]:
        """Each part's arrays in host memory, all moved there once."""
        host = jax.tree.map(np.asarray, tree)
        return [jax.tree.map(itemgetter(number), host) for number in range(len(self._replays))]

    def _together(self, held: list[Any]) -> Any:
        self._make_room()
        for part in self._replays:
            part.settle()
        return stacked([part.grown(own) for part, own in zip(self._replays, held, strict=True)], 0)

    def _make_room(self) -> None:
        room = max(part.room for part in self._replays)
        for part in self._replays:
            part.make_room(room)


# --- Parts of arrays and rows -------------------------------------------------------------------


def part_of(held: Any, number: int) -> Any:
    """One part's arrays of all parts' in device memory, without moving them."""
    return jax.tree.map(lambda leaf: PartOf(leaf, number), held)


class PartOf:
    """One part's array ``[n, ...]`` of a sharded ``[S, n, ...]``, read piece by piece."""

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
    """Several parts' rows as one store's: lanes side by side."""

    def __init__(self, sources: Sequence[RowSource]) -> None:
        self._sources = list(sources)

    @property
    def stored(self) -> tuple[int, int]:
        """The parts' own: they take in as many rows each."""
        return self._sources[0].stored

    def read(self, first: int, end: int) -> dict[str, np.ndarray]:
        """The rows ``first .. end - 1`` of all lanes."""
        parts = [source.read(first, end) for source in self._sources]
        joined = {
            name: np.concatenate([part[name] for part in parts], 1)
            for name in parts[0]
            if name != "finals"
        }
        lanes = parts[0]["truncated"].shape[1]
        places = [
            np.argwhere(part["truncated"]) + np.array([0, number * lanes])
            for number, part in enumerate(parts)
        ]
        row, lane = np.concatenate(places).T
        finals = np.concatenate([part["finals"] for part in parts])
        return joined | {"finals": finals[np.lexsort((lane, row))]}


class PartRows:
    """The rows of some lanes of a store."""

    def __init__(self, rows: RowSource, first: int, lanes: int) -> None:
        self._rows, self._lanes = rows, slice(first, first + lanes)

    @property
    def stored(self) -> tuple[int, int]:
        """As many rows as the whole store has."""
        return self._rows.stored

    def read(self, first: int, end: int) -> dict[str, np.ndarray]:
        """The rows ``first .. end - 1`` of these lanes."""
        part = self._rows.read(first, end)
        lane = np.argwhere(part["truncated"])[:, 1]
        mine = (lane >= self._lanes.start) & (lane < self._lanes.stop)
        own = {name: array[:, self._lanes] for name, array in part.items() if name != "finals"}
        return own | {"finals": part["finals"][mine]}
