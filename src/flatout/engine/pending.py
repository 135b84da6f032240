"""Trajectories that wait for the learner, and their form in snapshots. Schedules keep them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from flatout import tree
from flatout.engine.trajectory import (
    CARRY,
    FINAL_INDEX,
    FINAL_OBS,
    TREES,
    append_final,
    arrays_of,
    env_axis,
)
from flatout.errors import CheckpointError
from flatout.types import Episode, Episodes, Finals, Obs, Restart, Trajectory

NO_EPISODES = Episodes(*(np.zeros(0, kind) for kind in (int, float, int, float)))


@dataclass
class Pending:
    """A collected trajectory that the learner has not used yet.

    Attributes:
        trajectory: the trajectory.
        version: the version of the parameters that acted.
        steps: its environment steps.
        episodes: the episodes that ended in it.
        restarted: the environments that were restarted before its first step.
        ready: `time.perf_counter` when it was complete.
    """

    trajectory: Trajectory
    version: int
    steps: int
    episodes: list[Episode]
    restarted: list[Restart]
    ready: float = 0.0

    def saved(self, prefix: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return its arrays, with a prefix before their names, and JSON-compatible data."""
        extras = self.trajectory.extras
        arrays = {
            f"{prefix}extras/{name}" if name in extras else prefix + name: np.array(array)
            for name, array in arrays_of(self.trajectory).items()
        }
        numbers = [episode[:4] for episode in self.episodes]
        arrays[prefix + "ended_episodes"] = np.array(numbers, np.float64).reshape(-1, 4)
        for index, (_, last, first) in enumerate(self.restarted):
            both = tree.map(lambda *pair: np.stack(pair), last, first)
            arrays |= tree.named(f"{prefix}restarted/{index}", both)
        envs = [env for env, _, _ in self.restarted]
        data = {"version": self.version, "steps": self.steps, "restarted": envs}
        return arrays, data | {"infos": [episode.info for episode in self.episodes]}

    def ended(self) -> Episodes:
        """Return the episodes that ended in it, as arrays."""
        if not self.episodes:
            return NO_EPISODES
        env, total, length, q_max, _ = zip(*self.episodes, strict=True)
        return Episodes(np.array(env), np.array(total), np.array(length), np.array(q_max))

    def infos(self) -> list[dict[str, float] | None]:
        """Return the final `info` scalars of these episodes; empty if none has any."""
        infos = [episode.info for episode in self.episodes]
        return infos if any(infos) else []

    def truncate(self, env: int, last_obs: Obs, first_obs: Obs) -> None:
        """Truncate an episode after the last step; see `Buffer.truncate`."""
        arrays = self.trajectory
        steps, num_envs = arrays.rewards.shape
        tree.put(arrays.last_obs, env, first_obs)
        if arrays.ended is not None:
            arrays.ended[-1, env] = True
        if arrays.terminated[-1, env] or arrays.truncated[-1, env]:
            return
        arrays.truncated[-1, env] = True
        position = (steps - 1) * num_envs + env
        finals = append_final(arrays.finals, position, last_obs, steps * num_envs)
        self.trajectory = arrays._replace(finals=finals)

    @staticmethod
    def loaded(prefix: str, arrays: dict[str, np.ndarray], data: dict[str, Any]) -> Pending:
        """Return the trajectory of a result of `saved`; refuse impossible counts."""
        extras = f"{prefix}extras/"
        apart = ("extras", "finals", CARRY, *TREES)
        plain = [name for name in Trajectory._fields if name not in apart]
        trajectory = Trajectory(
            **{name: arrays.get(prefix + name) for name in plain},
            **{name: tree.found(prefix + name, arrays) for name in TREES},
            finals=Finals(tree.found(prefix + FINAL_OBS, arrays), arrays[prefix + FINAL_INDEX]),
            extras={n.removeprefix(extras): a for n, a in arrays.items() if n.startswith(extras)},
            carry=_leaves(f"{prefix}{CARRY}/", arrays),  # `refuse_other` gives it its form
        )
        ended = arrays[prefix + "ended_episodes"]
        infos = [i and {str(k): float(v) for k, v in i.items()} for i in data["infos"]]
        episodes = [
            Episode(int(env), float(total), int(length), float(q_max), info)
            for (env, total, length, q_max), info in zip(ended, infos, strict=True)
        ]
        restarted: list[Restart] = []
        for index, env in enumerate(data["restarted"]):
            both = tree.found(f"{prefix}restarted/{index}", arrays)
            restarted.append((env, tree.take(both, 0), tree.take(both, 1)))
        for count in (data["version"], data["steps"]):
            if type(count) is not int or not 0 <= count < 2**31:
                raise CheckpointError(
                    f"a pending trajectory has the impossible count {str(count)[:40]}."
                )
        return Pending(trajectory, data["version"], data["steps"], episodes, restarted)

    def refuse_other(self, shapes: Trajectory) -> None:
        """Raise `CheckpointError` if the arrays differ from this run's `shapes` in shape or dtype.
        The number of final observations may differ."""
        arrays, expected = arrays_of(self.trajectory), arrays_of(shapes)
        most = 2 * math.prod(shapes.rewards.shape)
        for name in arrays | expected:
            array, shape = arrays.get(name), expected.get(name)
            finals = int(env_axis(name) is None)
            same = (
                array is not None
                and shape is not None
                and array.dtype == shape.dtype
                and array.shape[finals:] == shape.shape[finals:]
            )
            if finals and same:
                same = len(self.trajectory.finals.index) == len(arrays[name]) <= most
            if not same:
                raise CheckpointError(f"a pending trajectory has another shape or dtype of {name}.")
        carry = jax.tree.structure(shapes.carry).unflatten(jax.tree.leaves(self.trajectory.carry))
        self.trajectory = self.trajectory._replace(carry=carry)


def _leaves(prefix: str, arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return the arrays whose names are a prefix and 0, 1 and so on."""
    count = sum(name.startswith(prefix) for name in arrays)
    return tuple(arrays[f"{prefix}{number}"] for number in range(count))
