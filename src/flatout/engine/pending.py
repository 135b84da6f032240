"""Trajectories that wait for the learner, and their form in snapshots. Schedules keep them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from flatout import tree
from flatout.engine.finals import append_final
from flatout.engine.trajectory import arrays_of, find_misfit, from_arrays
from flatout.errors import CheckpointError
from flatout.types import Episode, Episodes, Obs, Restart, Trajectory

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
        named = arrays_of(self.trajectory).items()
        arrays = {prefix + name: np.array(array) for name, array in named}
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
        mine = {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
        trajectory = from_arrays(mine)  # `refuse_other` gives the carry its form
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
        name = find_misfit(self.trajectory, shapes)
        if name is not None:
            raise CheckpointError(f"a pending trajectory has another shape or dtype of {name}.")
        carry = jax.tree.structure(shapes.carry).unflatten(jax.tree.leaves(self.trajectory.carry))
        self.trajectory = self.trajectory._replace(carry=carry)
