"""A buffer of S shards, each with its own environments, its own store and its own draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from flatout.algorithms.parallel.shards import by_axis
from flatout.buffers.base import Buffer, Scalars, check_shards
from flatout.types import RowSource, Trajectory


class ShardedBuffer:
    """Shards of one kind side by side; shard s has the s-th N / S environments.

    What it hands over has a leading axis of shards where the shards' own does not agree
    (`Buffer.axes`), and `learn` is that of one shard.

    Args:
        shards: the shards' buffers.
        envs: N / S.
    """

    def __init__(self, shards: Sequence[Buffer], envs: int) -> None:
        self._shards = list(shards)
        self._envs = envs
        self.metrics = shards[0].metrics
        self.axes = shards[0].axes

    def inputs(self, trajectory: Trajectory) -> list[Any]:
        """The shapes of all shards' inputs."""
        count = len(self._shards)

        def lifted(axis: Any, own: Any) -> Any:
            if axis is None:
                return own
            return jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), own
            )

        return [
            by_axis(lifted, self.axes, own)
            for own in self._shards[0].inputs(shard_shapes(trajectory, count))
        ]

    def device_state(self) -> Any:
        """Nothing lives in device memory."""
        return ()

    def ingest(self, trajectory: Trajectory) -> None:
        """Each shard takes in its own environments' steps."""
        for shard, own in zip(self._shards, split(trajectory, len(self._shards)), strict=True):
            shard.ingest(own)

    def batches(self) -> Iterator[Any]:
        """The shards' inputs, which come in step: all shards are owed the same updates."""
        for several in zip(*(shard.batches() for shard in self._shards), strict=True):
            yield stacked(several, self.axes)

    def learn(
        self, state: Any, device_state: Any, inputs: Any, key: jax.Array
    ) -> tuple[Any, Any, Scalars, Any]:
        """One shard's updates."""
        return self._shards[0].learn(state, device_state, inputs, key)

    def update_priorities(self, feedback: list[Any]) -> None:
        """Nothing: no shard has priorities in host memory."""

    def stats(self) -> dict[str, float]:
        """How full the shards are, and what they take together."""
        stats = [shard.stats() for shard in self._shards]
        joined = dict(stats[0])
        if "replay_mb" in joined:
            joined["replay_mb"] = sum(one["replay_mb"] for one in stats)
        return joined

    def memory_mb(self) -> tuple[float, float]:
        """MiB in host memory, and in the learning devices' together."""
        sizes = [shard.memory_mb() for shard in self._shards]
        return sum(size[0] for size in sizes), sum(size[1] for size in sizes)

    def state(
        self, device_state: Any
    ) -> tuple[dict[str, np.ndarray], dict[str, Any], RowSource | None]:
        """The shards' own, with their numbers before the names of arrays."""
        arrays: dict[str, np.ndarray] = {}
        data: list[dict[str, Any]] = []
        for number, shard in enumerate(self._shards):
            kept, said, _ = shard.state(device_state)
            arrays |= {f"{number}/{name}": array for name, array in kept.items()}
            data.append(said)
        return arrays, {"parts": data}, None

    def restore(
        self, arrays: dict[str, np.ndarray], data: dict[str, Any], rows: RowSource | None
    ) -> Any:
        """Take over such a state; returns the device state."""
        check_shards(data, len(self._shards))
        for number, (shard, said) in enumerate(zip(self._shards, data["parts"], strict=True)):
            start = f"{number}/"
            kept = {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}
            shard.restore(kept, said, None)
        return ()

    def truncate(
        self, env: int, final_obs: np.ndarray, first_obs: np.ndarray, device_state: Any
    ) -> Any:
        """The environment's shard is told."""
        number, own = divmod(env, self._envs)
        return self._shards[number].truncate(own, final_obs, first_obs, device_state)


# --- Shards of trajectories and arrays -----------------------------------------------------------


def split(trajectory: Trajectory, shards: int) -> list[Trajectory]:
    """The trajectories of each shard's environments (views), final observations sorted in."""
    steps, envs = trajectory.rewards.shape
    own = envs // shards
    room = len(trajectory.final_index) // shards
    used = np.flatnonzero(trajectory.final_index < steps * envs)
    row, env = np.divmod(trajectory.final_index[used], envs)
    shard = env // own
    most = int(np.bincount(shard, minlength=1).max())
    while room < most:  # as one shard's may all have been cut
        room *= 2
    found = []
    for number in range(shards):
        mine = shard == number
        final_obs = np.zeros((room, *trajectory.final_obs.shape[1:]), trajectory.final_obs.dtype)
        final_index = np.full((room,), steps * own, np.int32)
        final_obs[: mine.sum()] = trajectory.final_obs[used[mine]]
        final_index[: mine.sum()] = row[mine] * own + env[mine] - number * own
        columns = slice(number * own, (number + 1) * own)
        kept = {"final_obs": final_obs, "final_index": final_index}
        found.append(_of_envs(trajectory, columns)._replace(**kept))
    return found


def shard_shapes(trajectory: Trajectory, shards: int) -> Trajectory:
    """The shapes of one shard's trajectories, of all environments' shapes."""

    def shaped(leaf: Any, axis: int) -> jax.ShapeDtypeStruct:
        shape = list(leaf.shape)
        shape[axis] //= shards
        return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype)

    whole = ("last_obs", "final_obs", "final_index")
    return _mapped(trajectory, lambda name, leaf: shaped(leaf, 0 if name in whole else 1))


def _of_envs(trajectory: Trajectory, columns: slice) -> Trajectory:
    def pick(name: str, array: Any) -> Any:
        if name in ("final_obs", "final_index"):
            return array
        return array[columns] if name == "last_obs" else array[:, columns]

    return _mapped(trajectory, pick)


def _mapped(trajectory: Trajectory, function: Any) -> Trajectory:
    """A function of (field's name, array) over a trajectory's arrays."""
    fields = {
        name: function(name, value)
        for name, value in trajectory._asdict().items()
        if name != "extras" and value is not None
    }
    extras = {name: function("extras", value) for name, value in trajectory.extras.items()}
    return trajectory._replace(extras=extras, **fields)


def stacked(shards: Sequence[Any], axes: Any) -> Any:
    """One pytree with a leading axis of shards, where they do not agree."""

    def join(axis: Any, *own: Any) -> Any:
        if axis is None:
            return own[0]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *own)

    return by_axis(join, axes, *shards)
