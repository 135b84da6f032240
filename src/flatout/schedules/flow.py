"""What every schedule does with its sampler, learner and policies, whatever the order."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatout.errors import CheckpointError
from flatout.learner.learner import Learner
from flatout.learner.policy import Publisher
from flatout.samplers.base import Restart, Sampler
from flatout.spans import Spans, Work
from flatout.storage.checkpoint import PREFIX, leaf_names, named_leaves, rebuild
from flatout.types import Episode, Metrics, Snapshot, Trajectory

BUFFER, PENDING = "buffer/", "pending/"
"""What the buffer's arrays, and trajectories not yet learned from, are named after in snapshots."""


@dataclass
class Pending:
    """A trajectory that waits to be learned from.

    Attributes:
        trajectory: its arrays.
        version: of the parameters that acted in it.
        steps: environment steps in it.
        episodes: that ended in it.
        restarted: environments that began anew in its first step.
        ready: `time.perf_counter` when it was complete.
    """

    trajectory: Trajectory
    version: int
    steps: int
    episodes: list[Episode]
    restarted: list[Restart]
    ready: float = 0.0

    def saved(self, place: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Its arrays, named after a place, and JSON-compatible data."""
        fields = self.trajectory._asdict()
        extras = fields.pop("extras")
        arrays = {place + n: np.array(array) for n, array in fields.items() if array is not None}
        arrays |= {f"{place}extras/{name}": np.array(array) for name, array in extras.items()}
        arrays[place + "ended_episodes"] = np.array(self.episodes, np.float64).reshape(-1, 4)
        for index, (_, last, first) in enumerate(self.restarted):
            arrays[f"{place}restarted/{index}"] = np.stack([last, first])
        envs = [env for env, _, _ in self.restarted]
        return arrays, {"version": self.version, "steps": self.steps, "restarted": envs}

    def truncate(self, env: int, final_obs: np.ndarray, first_obs: np.ndarray) -> None:
        """The environment's episode is over with the last step, and another one begins."""
        one = self.trajectory
        steps, num_envs = one.rewards.shape
        one.last_obs[env] = first_obs
        if one.ended is not None:
            one.ended[-1, env] = True
        if one.terminated[-1, env] or one.truncated[-1, env]:
            return
        one.truncated[-1, env] = True
        free = np.flatnonzero(one.final_index == steps * num_envs)
        if not len(free):
            self.trajectory = one = one._replace(
                final_obs=np.concatenate([one.final_obs, np.zeros_like(one.final_obs)]),
                final_index=np.concatenate(
                    [one.final_index, np.full_like(one.final_index, steps * num_envs)]
                ),
            )
            free = np.flatnonzero(one.final_index == steps * num_envs)
        one.final_obs[free[0]] = final_obs
        one.final_index[free[0]] = (steps - 1) * num_envs + env

    @staticmethod
    def loaded(place: str, arrays: dict[str, np.ndarray], data: dict[str, Any]) -> Pending:
        """What `saved` made."""
        extras = f"{place}extras/"
        trajectory = Trajectory(
            **{name: arrays.get(place + name) for name in Trajectory._fields if name != "extras"},
            extras={n.removeprefix(extras): a for n, a in arrays.items() if n.startswith(extras)},
        )
        episodes = [
            Episode(int(env), float(total), int(length), float(q_max))
            for env, total, length, q_max in arrays[place + "ended_episodes"]
        ]
        restarted = [
            (env, *arrays[f"{place}restarted/{index}"])
            for index, env in enumerate(data["restarted"])
        ]
        for count in (data["version"], data["steps"]):
            if type(count) is not int or not 0 <= count < 2**31:
                raise CheckpointError(f"a waiting trajectory counts {str(count)[:40]}.")
        return Pending(trajectory, data["version"], data["steps"], episodes, restarted)

    def refuse_other(self, shapes: Trajectory) -> None:
        """Refuse a trajectory that this run cannot have collected.

        Args:
            shapes: of those that it collects; of final observations there may be more or fewer.

        Raises:
            CheckpointError: the first array that is another.
        """
        own, wanted = self.trajectory._asdict(), shapes._asdict()
        own |= {f"extras/{name}": array for name, array in own.pop("extras").items()}
        wanted |= {f"extras/{name}": array for name, array in wanted.pop("extras").items()}
        steps_envs = math.prod(shapes.rewards.shape)
        for name in own | wanted:
            one, other = own.get(name), wanted.get(name)
            sparse = int(name in ("final_obs", "final_index"))
            same = one is None and other is None
            if one is not None and other is not None:
                same = one.dtype == other.dtype and one.shape[sparse:] == other.shape[sparse:]
                if sparse and same:
                    same = len(own["final_index"]) == len(one) <= 2 * steps_envs
            if not same:
                raise CheckpointError(f"a waiting trajectory has another shape of {name}.")


class Flow:
    """The base of schedules: parts, and their state as one snapshot.

    Args:
        sampler: collects.
        policies: hold the published parameters.
        learner: learns.
        spans: where the time goes.
        discardable: a context in which work may be interrupted and thrown away; learning may not.
        always: the metrics that mean something also where no update was made.
    """

    def __init__(
        self,
        sampler: Sampler,
        policies: Sequence[Publisher],
        learner: Learner,
        spans: Spans,
        discardable: Callable[[], AbstractContextManager[Any]],
        always: tuple[str, ...] = (),
    ) -> None:
        self._sampler = sampler
        self._policies = list(policies)
        self._learner = learner
        self._spans = spans
        self._discardable = discardable
        self._always = frozenset((*always, "replay_fill", "replay_mb"))
        self._version = 0  # iterations learned from
        self._pending: deque[Pending] = deque()  # collected, not yet learned from

    @property
    def params(self) -> tuple[Any, ...]:
        """The newest actor parameters, bundled."""
        return self._learner.bundle

    def stats(self) -> dict[str, float]:
        """See `Schedule.facts`."""
        return {"environments_lost": self._sampler.lost}

    def lanes(self) -> dict[str, Work]:
        """See `Schedule.lanes`."""
        return self._sampler.work()

    def memory(self) -> dict[str, dict[str, float]]:
        """See `Schedule.memory`."""
        return self._learner.live_mb()

    def start(self) -> None:
        """Draw the initial parameters and reset the environments."""
        self._learner.start()
        self._publish(self.params, self._version)
        self._sampler.start()

    def adopt(self, arrays: dict[str, np.ndarray]) -> None:
        """Start from learned arrays (parameters, normalisers, optimiser where kept) instead of
        fresh ones; counters stay at the start."""
        own = named_leaves(self._learner.host_state(), PREFIX)
        counters = tuple(PREFIX + name for name in (".step", ".iteration", ".updates", ".epsilon"))
        own |= {name: arrays[name] for name in own if name in arrays and name not in counters}
        self._learner.adopt(self._learned(own))
        self._publish(self.params, self._version)

    def snapshot(self) -> Snapshot:
        """All state at the last iteration's boundary."""
        arrays = named_leaves(self._learner.host_state(), PREFIX)
        sampler = self._sampler.state()
        arrays["sampler/obs"] = sampler.pop("obs")
        known: list[bool] = []
        for env, actions in enumerate(sampler.pop("actions")):
            known.append(actions is not None)
            if actions is not None:
                arrays[f"sampler/actions/{env}"] = actions
        kept, books, rows = self._learner.buffer_state()
        arrays |= {BUFFER + name: array for name, array in kept.items()}
        pending: list[dict[str, Any]] = []
        for number, one in enumerate(self._pending):
            more, said = one.saved(f"{PENDING}{number}/")
            arrays |= more
            pending.append(said)
        data = {
            "version": self._version, "sampler": sampler | {"known": known}, "buffer": books,
            "pending": pending,
        }  # fmt: skip
        return Snapshot(arrays, data, rows)

    def restore(self, snapshot: Snapshot) -> list[str]:
        """Take over such a state; sentences about what could not be restored."""
        arrays, data = snapshot.arrays, snapshot.data
        kept = {
            name.removeprefix(BUFFER): array
            for name, array in arrays.items()
            if name.startswith(BUFFER)
        }
        books = data.get("buffer", {})
        self._learner.restore(self._learned(arrays), kept, books, snapshot.rows)
        self._version = int(data["version"])
        if self._version < 0:
            raise CheckpointError(f"its version {self._version} is impossible.")
        self._publish(self.params, self._version)
        state = dict(data["sampler"])
        state["actions"] = [
            arrays[f"sampler/actions/{env}"] if known else None
            for env, known in enumerate(state.pop("known"))
        ]
        state["obs"] = np.asarray(arrays["sampler/obs"])
        # A run that overlapped and goes on serially learns from what waits first.
        self._pending = deque(
            Pending.loaded(f"{PENDING}{number}/", arrays, said)
            for number, said in enumerate(data.get("pending", []))
        )
        for waiting in self._pending:
            if self._learner.trajectory is not None:
                waiting.refuse_other(self._learner.trajectory)
        notes = self._sampler.restore(state)
        if self._pending:
            for restart in self._sampler.restarted:
                self._pending[-1].truncate(*restart)
        else:
            self._truncate(self._sampler.restarted)
        return notes

    def close(self) -> None:
        """Close the environments and end every process and thread."""
        self._sampler.close()

    def _collect(self, version: int) -> Pending:
        """One trajectory, which may be interrupted and thrown away until it is complete."""
        sampler = self._sampler
        with self._discardable():
            trajectory = sampler.collect()
        return Pending(
            trajectory, version, sampler.steps_collected, list(sampler.episodes),
            list(sampler.restarted),
        )  # fmt: skip

    def _learn(self, taken: Pending) -> dict[str, float]:
        """Learn from a trajectory."""
        self._truncate(taken.restarted)
        return self._learner.update(taken.trajectory)

    def _truncate(self, restarted: Iterable[Restart]) -> None:
        """Tell what is learned from of environments that began anew out of turn."""
        for restart in restarted:
            self._learner.truncate(*restart)

    def _metrics(self, values: dict[str, float], taken: Pending) -> Metrics:
        """An iteration's metrics from what the learner said."""
        updates = round(values.pop("updates"))
        if not updates:  # nothing was averaged
            values = {name: values[name] for name in values if name in self._always}
        return Metrics(taken.steps, updates, taken.episodes, values)

    def _publish(self, bundle: tuple[Any, ...], version: int) -> None:
        for policy in self._policies:
            policy.publish(bundle, version, self._spans)

    def _learned(self, arrays: dict[str, np.ndarray]) -> Any:
        shapes = self._learner.shapes
        return rebuild(leaf_names(shapes, PREFIX), shapes, arrays)
