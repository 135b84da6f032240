"""Pending trajectories, and how they are saved."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatout.buffers.arrays import FINALS, arrays_of, room_for
from flatout.errors import CheckpointError
from flatout.samplers.base import Restart
from flatout.types import Episode, Episodes, Trajectory

NO_EPISODES = Episodes(*(np.zeros(0, kind) for kind in (int, float, int, float)))


@dataclass
class Pending:
    """A collected trajectory that the learner has not used yet.

    Attributes:
        trajectory: its arrays.
        version: of the parameters that acted in it.
        steps: environment steps in it.
        episodes: that ended in it.
        restarted: environments that were restarted before its first step.
        ready: `time.perf_counter` when it was complete.
    """

    trajectory: Trajectory
    version: int
    steps: int
    episodes: list[Episode]
    restarted: list[Restart]
    ready: float = 0.0

    def saved(self, prefix: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Its arrays, named with a prefix, and JSON-compatible data."""
        fields = self.trajectory._asdict()
        extras = fields.pop("extras")
        arrays = {prefix + n: np.array(array) for n, array in fields.items() if array is not None}
        arrays |= {f"{prefix}extras/{name}": np.array(array) for name, array in extras.items()}
        numbers = [episode[:4] for episode in self.episodes]
        arrays[prefix + "ended_episodes"] = np.array(numbers, np.float64).reshape(-1, 4)
        for index, (_, last, first) in enumerate(self.restarted):
            arrays[f"{prefix}restarted/{index}"] = np.stack([last, first])
        envs = [env for env, _, _ in self.restarted]
        data = {"version": self.version, "steps": self.steps, "restarted": envs}
        return arrays, data | {"infos": [episode.info for episode in self.episodes]}

    def ended(self) -> Episodes:
        """The episodes that ended in it."""
        if not self.episodes:
            return NO_EPISODES
        env, total, length, q_max, _ = zip(*self.episodes, strict=True)
        return Episodes(np.array(env), np.array(total), np.array(length), np.array(q_max))

    def infos(self) -> list[dict[str, float] | None]:
        """The scalars of their final `info`, if any has some."""
        infos = [episode.info for episode in self.episodes]
        return infos if any(infos) else []

    def truncate(self, env: int, last_obs: np.ndarray, first_obs: np.ndarray) -> None:
        """See `Buffer.truncate`."""
        arrays = self.trajectory
        steps, num_envs = arrays.rewards.shape
        arrays.last_obs[env] = first_obs
        if arrays.ended is not None:
            arrays.ended[-1, env] = True
        if arrays.terminated[-1, env] or arrays.truncated[-1, env]:
            return
        arrays.truncated[-1, env] = True
        unused = steps * num_envs
        count, before = int((arrays.final_index != unused).sum()), len(arrays.final_index)
        more = room_for(count + 1, before) - before
        if more:
            obs = np.zeros((more, *arrays.final_obs.shape[1:]), arrays.final_obs.dtype)
            index = np.full(more, unused, arrays.final_index.dtype)
            self.trajectory = arrays = arrays._replace(
                final_obs=np.concatenate([arrays.final_obs, obs]),
                final_index=np.concatenate([arrays.final_index, index]),
            )
        arrays.final_obs[count] = last_obs
        arrays.final_index[count] = (steps - 1) * num_envs + env

    @staticmethod
    def loaded(prefix: str, arrays: dict[str, np.ndarray], data: dict[str, Any]) -> Pending:
        """The inverse of `saved`."""
        extras = f"{prefix}extras/"
        trajectory = Trajectory(
            **{name: arrays.get(prefix + name) for name in Trajectory._fields if name != "extras"},
            extras={n.removeprefix(extras): a for n, a in arrays.items() if n.startswith(extras)},
        )
        ended = arrays[prefix + "ended_episodes"]
        infos = data.get("infos") or [None] * len(ended)
        infos = [info and {str(k): float(v) for k, v in info.items()} for info in infos]
        episodes = [
            Episode(int(env), float(total), int(length), float(q_max), info)
            for (env, total, length, q_max), info in zip(ended, infos, strict=True)
        ]
        restarted = [
            (env, *arrays[f"{prefix}restarted/{index}"])
            for index, env in enumerate(data["restarted"])
        ]
        for count in (data["version"], data["steps"]):
            if type(count) is not int or not 0 <= count < 2**31:
                raise CheckpointError(f"a waiting trajectory counts {str(count)[:40]}.")
        return Pending(trajectory, data["version"], data["steps"], episodes, restarted)

    def refuse_other(self, shapes: Trajectory) -> None:
        """Refuse a trajectory with other `shapes` than this run's (final observations may differ
        in number)."""
        arrays, expected = arrays_of(self.trajectory), arrays_of(shapes)
        most = 2 * math.prod(shapes.rewards.shape)
        for name in arrays | expected:
            array, shape, finals = arrays.get(name), expected.get(name), int(name in FINALS)
            same = (
                array is not None
                and shape is not None
                and array.dtype == shape.dtype
                and array.shape[finals:] == shape.shape[finals:]
            )
            if finals and same:
                same = len(self.trajectory.final_index) == len(arrays[name]) <= most
            if not same:
                raise CheckpointError(f"a waiting trajectory has another shape of {name}.")
