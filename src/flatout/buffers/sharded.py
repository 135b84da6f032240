"""A buffer of S parts, each with its own environments, its own store and its own draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

import jax
import numpy as np

from flatout.algorithms.shards import by_axis
from flatout.buffers.base import Buffer, Scalars
from flatout.buffers.device import DeviceReplay
from flatout.errors import CheckpointError
from flatout.types import RowSource, Trajectory


class ShardedBuffer:
    """Parts of one kind side by side; part s has the s-th N / S environments.

    What it hands over has a leading axis of parts where the parts' own does not agree
    (`Buffer.axes`), and `learn` is that of one part.

    Args:
        parts: the parts' buffers.
        envs: N / S.
    """

    def __init__(self, parts: Sequence[Buffer], envs: int) -> None:
        self._parts = list(parts)
        self._envs = envs
        self.metrics = parts[0].metrics
        self.axes = parts[0].axes

    def inputs(self, trajectory: Trajectory) -> list[Any]:
        """The shapes of all parts' inputs."""
        count = len(self._parts)

        def lifted(axis: Any, own: Any) -> Any:
            if axis is None:
                return own
            return jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), own
            )

        return [
            by_axis(lifted, self.axes, own)
            for own in self._parts[0].inputs(part_shapes(trajectory, count))
        ]

    def held(self) -> Any:
        """What the parts keep in device memory."""
        return _stacked([part.held() for part in self._parts], 0)

    def book(self, trajectory: Trajectory) -> None:
        """Each part takes in its own environments' steps."""
        for part, own in zip(self._parts, split(trajectory, len(self._parts)), strict=True):
            part.book(own)
        self._make_room()

    def arrivals(self) -> Iterator[Any]:
        """The parts' inputs, which come in step: all parts are owed the same updates."""
        for several in zip(*(part.arrivals() for part in self._parts), strict=True):
            yield _stacked(several, self.axes)

    def learn(
        self, state: Any, held: Any, inputs: Any, key: jax.Array
    ) -> tuple[Any, Any, Scalars, Any]:
        """One part's updates."""
        return self._parts[0].learn(state, held, inputs, key)

    def refresh(self, feedback: list[Any]) -> None:
        """Each part takes in what was fed back from its own rows."""
        for part, own in zip(self._parts, self._apart(feedback), strict=True):
            part.refresh(own)

    def facts(self) -> dict[str, float]:
        """How full the parts are, and what they take together."""
        facts = [part.facts() for part in self._parts]
        joined = dict(facts[0])
        if "replay_mb" in joined:
            joined["replay_mb"] = sum(one["replay_mb"] for one in facts)
        return joined

    def memory_mb(self) -> tuple[float, float]:
        """MiB in host memory, and in the learning devices' together."""
        sizes = [part.memory_mb() for part in self._parts]
        return sum(size[0] for size in sizes), sum(size[1] for size in sizes)

    def state(self, held: Any) -> tuple[dict[str, np.ndarray], dict[str, Any], RowSource | None]:
        """The parts' own, with their numbers before the names of arrays; rows as one store's."""
        arrays: dict[str, np.ndarray] = {}
        data: list[dict[str, Any]] = []
        sources: list[RowSource] = []
        for number, part in enumerate(self._parts):
            kept, said, rows = part.state(part_of(held, number))
            arrays |= {f"{number}/{name}": array for name, array in kept.items()}
            data.append(said)
            sources += [] if rows is None else [rows]
        return arrays, {"parts": data}, JoinedRows(sources) if sources else None

    def restore(
        self, arrays: dict[str, np.ndarray], data: dict[str, Any], rows: RowSource | None
    ) -> Any:
        """Take over such a state; returns what is held."""
        said = data.get("parts", [])
        if len(said) != len(self._parts):
            raise CheckpointError(f"it was saved with --shards {max(len(said), 1)}.")
        held = []
        for number, part in enumerate(self._parts):
            start = f"{number}/"
            kept = {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}
            own = None if rows is None else PartRows(rows, number * self._envs, self._envs)
            held.append(part.restore(kept, said[number], own))
        return self._together(held)

    def cut(self, env: int, final_obs: np.ndarray, first_obs: np.ndarray, held: Any) -> Any:
        """The environment's part is told; what is held moves through host memory."""
        number, own = divmod(env, self._envs)
        parts = self._apart(held)
        parts[number] = self._parts[number].cut(own, final_obs, first_obs, parts[number])
        return self._together(parts)

    def grown(self, held: Any) -> Any:
        """What is held, with room for the final observations of the part that has most."""
        devices = [part for part in self._parts if isinstance(part, DeviceReplay)]
        if not devices or devices[0].fits(held.ring.finals.shape[1]):
            return held
        return self._together(self._apart(held))

    def _apart(self, tree: Any) -> list[Any]:
        """Each part's arrays in host memory, all moved there once."""
        host = jax.tree.map(np.asarray, tree)
        return [jax.tree.map(itemgetter(number), host) for number in range(len(self._parts))]

    def _together(self, held: list[Any]) -> Any:
        self._make_room()
        devices = [part for part in self._parts if isinstance(part, DeviceReplay)]
        if devices:
            for part in devices:
                part.settle()
            held = [part.grown(own) for part, own in zip(devices, held, strict=True)]
        return _stacked(held, 0)

    def _make_room(self) -> None:
        """Arrays of one shape for all parts, though only one part's episodes were cut often."""
        devices = [part for part in self._parts if isinstance(part, DeviceReplay)]
        room = max((part.room for part in devices), default=0)
        for part in devices:
            part.make_room(room)


# --- Parts of trajectories, arrays and rows -----------------------------------------------------


def split(trajectory: Trajectory, parts: int) -> list[Trajectory]:
    """The trajectories of each part's environments (views), final observations sorted in."""
    steps, envs = trajectory.rewards.shape
    own = envs // parts
    room = len(trajectory.final_index) // parts
    used = np.flatnonzero(trajectory.final_index < steps * envs)
    row, env = np.divmod(trajectory.final_index[used], envs)
    part = env // own
    most = int(np.bincount(part, minlength=1).max())
    while room < most:  # as one part's may all have been cut
        room *= 2
    found = []
    for number in range(parts):
        mine = part == number
        final_obs = np.zeros((room, *trajectory.final_obs.shape[1:]), trajectory.final_obs.dtype)
        final_index = np.full((room,), steps * own, np.int32)
        final_obs[: mine.sum()] = trajectory.final_obs[used[mine]]
        final_index[: mine.sum()] = row[mine] * own + env[mine] - number * own
        lanes = slice(number * own, (number + 1) * own)
        kept = {"final_obs": final_obs, "final_index": final_index}
        found.append(_of_lanes(trajectory, lanes)._replace(**kept))
    return found


def part_shapes(trajectory: Trajectory, parts: int) -> Trajectory:
    """The shapes of one part's trajectories, of all environments' shapes."""

    def shaped(leaf: Any, axis: int) -> jax.ShapeDtypeStruct:
        shape = list(leaf.shape)
        shape[axis] //= parts
        return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype)

    whole = ("last_obs", "final_obs", "final_index")
    return _mapped(trajectory, lambda name, leaf: shaped(leaf, 0 if name in whole else 1))


def _of_lanes(trajectory: Trajectory, lanes: slice) -> Trajectory:
    def cut(name: str, array: Any) -> Any:
        if name in ("final_obs", "final_index"):
            return array
        return array[lanes] if name == "last_obs" else array[:, lanes]

    return _mapped(trajectory, cut)


def _mapped(trajectory: Trajectory, function: Any) -> Trajectory:
    """A function of (field's name, array) over a trajectory's arrays."""
    fields = {
        name: function(name, value)
        for name, value in trajectory._asdict().items()
        if name != "extras" and value is not None
    }
    extras = {name: function("extras", value) for name, value in trajectory.extras.items()}
    return trajectory._replace(extras=extras, **fields)


def _stacked(parts: Sequence[Any], axes: Any) -> Any:
    """One pytree with a leading axis of parts, where they do not agree."""

    def join(axis: Any, *own: Any) -> Any:
        if axis is None:
            return own[0]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *own)

    return by_axis(join, axes, *parts)


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
