"""Replay in the learning devices' memory, in S shards: each device has its shards' rings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

import jax
import numpy as np

from flatout.buffers.base import Arrays, Data, Saved, check_shards
from flatout.buffers.device import DeviceReplay
from flatout.buffers.rows import JoinedRows, ShardRows, shard_of
from flatout.buffers.sharded import ShardedBuffer, stacked
from flatout.types import Array, RowSource

ENV_AXIS = {"frames": 0, "age": 0, "priorities": 1}
"""The axis of environments in a shard's saved arrays; shards' other arrays are stacked."""


class ShardedReplay(ShardedBuffer):
    """Shards whose rings have one shape, though episodes of only one may be truncated often.

    Its saved state is that of `HostReplay` with as many shards.

    Args:
        shards: the shards' buffers.
        envs: N / S.
    """

    def __init__(self, shards: Sequence[DeviceReplay], envs: int) -> None:
        super().__init__(shards, envs)
        self._replays = list(shards)

    def device_state(self) -> Any:
        return stacked([shard.device_state() for shard in self._replays], 0)

    def batches(self) -> Iterator[Any]:
        self._share_room()
        yield from super().batches()

    def resized(self, device_state: Any) -> Any:
        if device_state.ring.finals.shape[1] == self._replays[0].ledger.room:
            return device_state
        return self._joined(self._parts(device_state))

    def state(self, device_state: Any) -> Saved:
        """The shards' states, environments side by side."""
        states = [
            shard.state(shard_of(device_state, number))
            for number, shard in enumerate(self._replays)
        ]
        each, data, rows = zip(*states, strict=True)
        arrays = {
            name: np.concatenate([part[name] for part in each], ENV_AXIS[name])
            if name in ENV_AXIS
            else np.stack([part[name] for part in each])
            for name in each[0]
        }
        room = sum(one["room"] for one in data)
        return arrays, data[0] | {"room": room, "shards": len(data)}, JoinedRows(rows)

    def restore(self, arrays: Arrays, data: Data, rows: RowSource | None) -> Any:
        count = len(self._replays)
        check_shards(data, count)
        states: list[Any] = []
        data = data | {"room": data["room"] // count}
        for number, shard in enumerate(self._replays):
            part = {
                name: np.split(array, count, ENV_AXIS[name])[number]
                if name in ENV_AXIS
                else array[number]
                for name, array in arrays.items()
            }
            mine = None if rows is None else ShardRows(rows, number * self._envs, self._envs)
            states.append(shard.restore(part, data, mine))
        return self._joined(states)

    def truncate(self, env: int, last_obs: Array, first_obs: Array, device_state: Any) -> Any:
        """See `Buffer.truncate`; the device state moves through host memory."""
        number, env = divmod(env, self._envs)
        states = self._parts(device_state)
        states[number] = self._replays[number].truncate(env, last_obs, first_obs, states[number])
        return self._joined(states)

    def _parts(self, tree: Any) -> list[Any]:
        """Each shard's arrays in host memory, all moved there once."""
        host = jax.tree.map(np.asarray, tree)
        return [jax.tree.map(itemgetter(number), host) for number in range(len(self._replays))]

    def _joined(self, states: list[Any]) -> Any:
        self._share_room()
        for shard in self._replays:
            shard.reserve(shard.ledger.finals)
        return stacked([s.resized(part) for s, part in zip(self._replays, states, strict=True)], 0)

    def _share_room(self) -> None:
        """Let all shards have room for as many final observations as the one that has most."""
        room = max(shard.ledger.room for shard in self._replays)
        for shard in self._replays:
            shard.ledger.room = room
