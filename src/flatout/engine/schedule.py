"""Step 2 of the data flow, inline: collect a trajectory, learn from it, publish the parameters.

`Schedule` is the base class of all schedules, `SerialSchedule` does this in one thread. The
trainer advances, saves and restores a run through a schedule. `Pending` trajectories wait for the
learner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from flatout import tree
from flatout.engine.act import Policy
from flatout.engine.finals import append_final
from flatout.engine.learn import Learner, LearnResult, refuse_diverged
from flatout.engine.sampler import ENVIRONMENTS, Sampler
from flatout.engine.state import RunState
from flatout.engine.trajectory import arrays_of, find_misfit, from_arrays
from flatout.engine.workers.local import ParamBroadcast
from flatout.errors import CheckpointError
from flatout.spans import Spans, Work
from flatout.storage.checkpoint import PREFIX, leaf_names, named_leaves, rebuild
from flatout.types import Episode, Episodes, Metrics, Obs, Restart, Snapshot, Trajectory

BUFFER, PENDING, OBS, CARRIED = "buffer/", "pending/", "sampler/obs", "sampler/carry/"
"""Prefixes, in snapshots, of the buffer's arrays and of pending trajectories."""

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
        if arrays.age is not None:
            arrays.age[-1, env] = 0
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


class Schedule:
    """The owner of a run's state and of its data flow; a subclass defines the order of its steps.

    Args:
        sampler: collects trajectories.
        policies: receive the published parameters.
        learner: learns from trajectories.
        spans: the spans of this thread.
        discardable: makes a context in which a signal may interrupt work, which is then discarded.
            Trajectories are collected in such a context; `Learner.learn` runs outside of it.
        always: names of metrics that are also valid in an iteration without updates.
    """

    def __init__(
        self,
        sampler: Sampler,
        policies: Sequence[Policy | ParamBroadcast],
        learner: Learner,
        spans: Spans,
        discardable: Callable[[], AbstractContextManager[Any]],
        always: tuple[str, ...] = (),
    ) -> None:
        self._sampler = sampler
        self._policies = list(policies)
        self.learner = learner
        self._spans = spans
        self._discardable = discardable
        self._always = frozenset((*always, "replay_fill", "replay_mb"))
        self._state: Any = None  # a `RunState`, or a member's view of one; None before `start`
        self._published: tuple[Any, ...] = ()  # the packed parameters that act
        self._version = 0  # iterations that the parameters have learned from
        self._steps = 0  # collected in this process
        self._pending: deque[Pending] = deque()  # collected, not yet learned from

    @property
    def state(self) -> RunState:
        """The state at the last iteration's boundary. The next iteration consumes it."""
        return self._settled()

    def _settled(self) -> Any:
        """Return the state, or a member's view, at the last iteration's boundary."""
        return self._state

    @property
    def params(self) -> tuple[Any, ...]:
        """The newest actor parameters, packed by `PackedParams`. Large arrays are the state's: a
        caller that keeps them beyond the next iteration copies them."""
        return self._published

    def stats(self) -> dict[str, float]:
        """Return statistics of this process, for `flow` in the run's summary."""
        acting = sum(one.bytes_sent for one in self._policies if isinstance(one, Policy))
        steps = max(self._steps, 1)
        return self._sampler.stats() | {
            "act_bytes_per_step": acting / steps,
            "learn_bytes_per_step": self.learner.bytes_sent / steps,
            **self._sampler.traffic(),
        }

    def work(self) -> dict[str, Work]:
        """Return the work of other threads and processes so far, by name."""
        return self._sampler.work()

    def memory(self) -> dict[str, dict[str, float]]:
        """Return the learner's memory in MiB; see `flatout.engine.memory.live_mb`."""
        return self.learner.live_mb(self.state)

    def advance(self, n: int, inspect_after: int = 0) -> Iterator[Metrics]:
        """Yield the metrics of the next `n` iterations; the caller may stop earlier.

        Args:
            n: the number of iterations.
            inspect_after: the number of iterations within which the caller will probably not read
                the state. The fused schedule may compute that many at once.
        """
        for _ in range(n):
            yield self._iterate()

    def _iterate(self) -> Metrics:
        raise NotImplementedError

    def start(self) -> None:
        """Draw the initial parameters and reset the environments."""
        environments = self._sampler.start()
        self._continue_from(self.learner.start()._replace(environments=environments))

    def _continue_from(self, state: RunState) -> None:
        """Make a state this schedule's own, and publish its parameters."""
        self._state = state
        self._publish(self.learner.publish_once(state.learned), self._version)

    def adopt(self, initial: Snapshot, counters: bool = False) -> None:
        """Continue, after `start`, from another run's parameters, normalisers and optimiser state,
        and from its replay if the snapshot has one.

        Args:
            counters: also take over its counters, except arrays, which are of its environments.
        """
        state, learner, arrays = self._state, self.learner, initial.arrays
        learned = learner.host_state(state.learned)
        fresh = named_leaves(learned, PREFIX)
        lasting = named_leaves(learned._replace(counters=()), PREFIX)
        for name in fresh.keys() & arrays.keys():
            if name in lasting or (counters and not arrays[name].ndim):
                fresh[name] = arrays[name]
        learned = self._rebuild_state(fresh)
        if initial.rows is None:
            state = state._replace(learned=learner.put(learned))
        else:
            self._refuse_other_obs(arrays)
            state = self._restored(learned, initial)._replace(environments=state.environments)
            # The other run's last episodes are truncated here: this run has new environments.
            # Trajectories that the other run had not yet learned from are dropped.
            waiting = tree.found(f"{PENDING}0/obs", arrays)
            last = tree.found(OBS, arrays)
            if waiting is not None:
                steps = len(arrays[f"{PENDING}0/rewards"])
                last = tree.map(lambda leaf: leaf[len(leaf) - steps], waiting)
            last, first = (
                tree.map(  # environments of shards have two axes; stacks may be single frames
                    lambda like, leaf: np.asarray(leaf).reshape(
                        -1, *like.shape[:-1], *np.shape(leaf)[-1:][: len(like.shape)]
                    ),
                    self._sampler.obs_shapes, each,
                )
                for each in (last, self._sampler.state(state.environments)["obs"])
            )  # fmt: skip
            envs = range(len(tree.first(first)))
            restarts = [(env, tree.take(last, env), tree.take(first, env)) for env in envs]
            state = learner.truncate(state, restarts)
        self._continue_from(state)

    def learned(self, optimiser: bool = True) -> dict[str, np.ndarray]:
        """Return the current learning state as named arrays, with or without the optimiser's."""
        return named_leaves(self.learner.host_state(self._settled().learned, optimiser), PREFIX)

    def snapshot(self) -> Snapshot:
        """Return all state at the last iteration's boundary. Raise `FlatoutError` if the learning
        state is no longer finite."""
        state = self.state
        learned = self.learner.host_state(state.learned)
        refuse_diverged(learned)
        arrays = named_leaves(learned, PREFIX)
        sampler = self._sampler.state(state.environments)
        arrays |= tree.named(OBS, sampler.pop("obs"))
        arrays |= {f"sampler/{name}": a for name, a in sampler.pop("arrays", {}).items()}
        arrays |= {f"{CARRIED}{n}": leaf for n, leaf in enumerate(sampler.pop("carry", []))}
        actions = sampler.pop("actions")
        has_actions = [array is not None for array in actions]
        arrays |= {f"sampler/actions/{env}": actions[env] for env in np.flatnonzero(has_actions)}
        buffer_arrays, counters, rows = self.learner.buffer.saved(state.store, state.counts)
        arrays |= {BUFFER + name: array for name, array in buffer_arrays.items()}
        pending: list[dict[str, Any]] = []
        for number, trajectory in enumerate(self._pending):
            trajectory_arrays, values = trajectory.saved(f"{PENDING}{number}/")
            arrays |= trajectory_arrays
            pending.append(values)
        data = {
            "version": self._version, "sampler": sampler | {"known": has_actions},
            "buffer": counters, "pending": pending,
        }  # fmt: skip
        return Snapshot(arrays, data, rows)

    def restore(self, snapshot: Snapshot) -> list[str]:
        """Restore a snapshot; return sentences about what could not be restored. Raise
        `CheckpointError` if the snapshot does not fit this run."""
        arrays, data = snapshot.arrays, snapshot.data
        learned = self._rebuild_state(arrays)
        self._refuse_other_obs(arrays)
        restored = self._restored(learned, snapshot)
        self._version = int(data["version"])
        if self._version < 0:
            raise CheckpointError(f"its version {self._version} is impossible.")
        state = dict(data["sampler"])
        state["actions"] = [
            arrays[f"sampler/actions/{env}"] if has_actions else None
            for env, has_actions in enumerate(state.pop("known"))
        ]
        state["obs"] = tree.map(np.asarray, tree.found(OBS, arrays))
        carried = sum(name.startswith(CARRIED) for name in arrays)
        if carried:
            state["carry"] = [arrays[f"{CARRIED}{number}"] for number in range(carried)]
        prefix = "sampler/" + ENVIRONMENTS
        env_arrays = {
            n.removeprefix("sampler/"): a for n, a in arrays.items() if n.startswith(prefix)
        }
        state |= {"arrays": env_arrays} if env_arrays else {}
        self._continue_from(restored._replace(environments=self._sampler.environments(state)))
        # A serial schedule that continues an overlapped run first learns from pending trajectories.
        self._pending = deque(
            Pending.loaded(f"{PENDING}{number}/", arrays, values)
            for number, values in enumerate(data["pending"])
        )
        for pending in self._pending:
            if self.learner.trajectory is not None:
                pending.refuse_other(self.learner.trajectory)
        notes = self._sampler.restore(state)
        if self._pending:
            for restart in self._sampler.restarted:
                self._pending[-1].truncate(*restart)
        else:
            self._state = self.learner.truncate(self._state, self._sampler.restarted)
        return notes

    def _restored(self, learned: Any, snapshot: Snapshot) -> RunState:
        """Return a state, without environments, with a learning state and a snapshot's replay."""
        arrays = snapshot.arrays.items()
        buffer = {n.removeprefix(BUFFER): array for n, array in arrays if n.startswith(BUFFER)}
        counters = snapshot.data["buffer"]
        return self.learner.restored(learned, (buffer, counters, snapshot.rows))

    def close(self) -> None:
        """Close the environments and end every process and thread."""
        self._sampler.close()

    def _collect(self, version: int) -> Pending:
        """Collect a trajectory with the parameters of a version; an interrupt discards it."""
        sampler = self._sampler
        with self._discardable():
            trajectory, environments = sampler.collect(self._state.environments, self._published)
        self._state = self._state._replace(environments=environments)
        steps = sampler.steps_collected
        self._steps += steps
        return Pending(
            trajectory, version, steps, list(sampler.episodes), list(sampler.restarted)
        )  # fmt: skip

    def _learn(self, state: RunState, pending: Pending) -> LearnResult:
        """Learn from a trajectory; see `Learner.learn`. If episodes were restarted before it was
        collected, first truncate them in the replay."""
        state = self.learner.truncate(state, pending.restarted)
        return self.learner.learn(state, pending.trajectory)

    def _metrics(self, values: dict[str, float], pending: Pending) -> Metrics:
        """Return the metrics of an iteration; averages are left out if it made no update."""
        updates = round(values.pop("updates"))
        if not updates:
            values = {name: values[name] for name in values if name in self._always}
        return Metrics(pending.steps, updates, pending.ended(), values, pending.infos())

    def _publish(self, packed: tuple[Any, ...], version: int) -> None:
        """Act with these parameters from now on."""
        self._published = packed
        for policy in self._policies:
            policy.publish(packed, version, self._spans)

    def _refuse_other_obs(self, arrays: dict[str, np.ndarray]) -> None:
        """Raise `CheckpointError` if the saved observations have other entries, shapes or dtypes
        than this run's."""
        if self._sampler.obs_shapes is None:
            return
        needed = dict(tree.items(self._sampler.obs_shapes))
        saved = dict(tree.items(tree.found(OBS, arrays)))
        if saved.keys() != needed.keys():
            one, other = (", ".join(filter(None, each)) or "one array" for each in (saved, needed))
            raise CheckpointError(f"it observed {one}, but this environment observes {other}.")
        for path, like in needed.items():
            array, shape = saved[path], like.shape
            if array.dtype != like.dtype or array.shape[array.ndim - len(shape) :] != shape:
                raise CheckpointError(
                    f"the array {tree.joined(OBS, path)} is {array.dtype}{list(array.shape)}, but "
                    f"one observation of this environment is {like.dtype}{list(shape)}."
                )

    def _rebuild_state(self, arrays: dict[str, np.ndarray]) -> Any:
        """Return the learning state whose leaves are these named arrays."""
        shapes = self.learner.shapes
        return rebuild(leaf_names(shapes, PREFIX), shapes, arrays)


class SerialSchedule(Schedule):
    """A schedule in one thread: collect trajectory k with version k, learn, publish k + 1."""

    def _iterate(self) -> Metrics:
        resumed = bool(self._pending)  # from an overlapped run
        pending = self._pending.popleft() if resumed else self._collect(self._version)
        self._state, packed, values = self._learn(self._state, pending)
        if not resumed:
            self._sampler.commit()
        self._version += 1
        self._publish(packed, self._version)
        return self._metrics(values, pending)
