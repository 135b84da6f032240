"""A buffer of S parts, each with its own environments, its own store and its own draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from flatout.algorithms.parallel.shards import by_axis
from flatout.buffers.base import Buffer, Scalars, check_shards
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
        """Nothing lives in device memory."""
        return ()

    def book(self, trajectory: Trajectory) -> None:
        """Each part takes in its own environments' steps."""
        for part, own in zip(self._parts, split(trajectory, len(self._parts)), strict=True):
            part.book(own)

    def arrivals(self) -> Iterator[Any]:
        """The parts' inputs, which come in step: all parts are owed the same updates."""
        for several in zip(*(part.arrivals() for part in self._parts), strict=True):
            yield stacked(several, self.axes)

    def learn(
        self, state: Any, held: Any, inputs: Any, key: jax.Array
    ) -> tuple[Any, Any, Scalars, Any]:
        """One part's updates."""
        return self._parts[0].learn(state, held, inputs, key)

    def refresh(self, feedback: list[Any]) -> None:
        """Nothing: no part has priorities in host memory."""

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
        """The parts' own, with their numbers before the names of arrays."""
        arrays: dict[str, np.ndarray] = {}
        data: list[dict[str, Any]] = []
        for number, part in enumerate(self._parts):
            kept, said, _ = part.state(held)
            arrays |= {f"{number}/{name}": array for name, array in kept.items()}
            data.append(said)
        return arrays, {"parts": data}, None

    def restore(
        self, arrays: dict[str, np.ndarray], data: dict[str, Any], rows: RowSource | None
    ) -> Any:
        """Take over such a state; returns what is held."""
        check_shards(data, len(self._parts))
        for number, (part, said) in enumerate(zip(self._parts, data["parts"], strict=True)):
            start = f"{number}/"
            kept = {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}
            part.restore(kept, said, None)
        return ()

    def cut(self, env: int, final_obs: np.ndarray, first_obs: np.ndarray, held: Any) -> Any:
        """The environment's part is told."""
        number, own = divmod(env, self._envs)
        return self._parts[number].cut(own, final_obs, first_obs, held)


# --- Parts of trajectories and arrays -----------------------------------------------------------


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


def stacked(parts: Sequence[Any], axes: Any) -> Any:
    """One pytree with a leading axis of parts, where they do not agree."""

    def join(axis: Any, *own: Any) -> Any:
        if axis is None:
            return own[0]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *own)

    return by_axis(join, axes, *parts)
