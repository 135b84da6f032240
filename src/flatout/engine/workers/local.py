"""The sampler whose actor processes act themselves, each with a copy of the actor on its CPU.

The parent writes parameters into shared memory; each worker acts and steps for a whole trajectory.
Workers import JAX for this: docs/placement.md gives the costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from flatout import tree
from flatout.algorithms.base import spec_shapes
from flatout.engine.episodes import restart_notes
from flatout.engine.rollout_buffer import RolloutBuffer
from flatout.engine.sampler import Sampler, check_counts
from flatout.engine.workers.pool import MachineLost, PoolWorker, WorkerLost, WorkerPool
from flatout.engine.workers.protocol import LASTING, PARAMS
from flatout.spans import Spans, Work
from flatout.types import Episode, Obs, Trajectory


class ParamBroadcast:
    """A publisher of parameters to the workers' policies, through shared memory."""

    def __init__(self, pool: WorkerPool) -> None:
        names = [name for name in pool.shared_arrays.arrays if name.startswith(PARAMS)]
        self._arrays = [pool.shared_arrays[name] for name in names]
        self.version = -1

    def publish(self, packed: tuple[Any, ...], version: int, spans: Spans) -> None:
        """Write the parameters; workers read them before their next trajectory."""
        with spans.span("publish"):
            for array, new in zip(self._arrays, packed, strict=True):
                array[...] = np.asarray(new)
            self.version = version


class WorkerActingSampler(Sampler):
    """A sampler that joins the trajectories that the workers collect.

    Args:
        pool: the workers.
        buffers: the arrays of trajectories, in the pool's shared memory.
        remote: holds the newest published version.
        name: the environment's name, for messages.
        spans: the spans of this process.
    """

    def __init__(
        self,
        pool: WorkerPool,
        buffers: Sequence[RolloutBuffer],
        remote: ParamBroadcast,
        name: str,
        spans: Spans,
    ) -> None:
        super().__init__()
        self._pool, self._remote, self._name, self._spans = pool, remote, name, spans
        self._workers = pool.workers
        self._buffers = list(buffers)
        self.num_envs = sum(worker.job.count for worker in self._workers)
        self._slot = self._rows = self._steps = 0
        self._begun = np.zeros(self.num_envs, np.int64)  # each environment's current episode
        self._newest: Any = None  # `saved_obs` of the observations after the last trajectory
        self._stateless: set[PoolWorker] = set()  # lost since the last commit
        self._losses: dict[PoolWorker, WorkerLost] = {}  # the next `collect` restarts them
        self._refusal: Exception | None = None  # out of `LASTING`; the next `collect` raises it

    @property
    def obs_shapes(self) -> Obs:
        return spec_shapes(self._buffers[0].spec)

    def start(self) -> None:
        self._ask_all("begin", {worker: self._begin_args(worker, 0) for worker in self._workers})

    def collect(self, environments: Any = None, params: Any = ()) -> tuple[Trajectory, None]:
        if self._refusal is not None:
            raise self._refusal
        slot = self._slot = (self._slot + 1) % len(self._buffers)
        buffer = self._buffers[slot]
        buffer.forget()
        self.restarted = []
        ends: list[tuple[int, Episode]] = []
        rows: dict[PoolWorker, int] = {}
        carries: list[Any] = []
        with self._spans.span("wait"):
            losses = {
                worker: self._losses.pop(worker, None) or self._tell(worker, slot)
                for worker in self._workers
            }
            for worker, lost in losses.items():
                while True:
                    if lost is not None:
                        lost = self._restart(lost, slot)
                        continue
                    try:
                        # See `LocalActor.collect`.
                        last, ended, indices, obs, begun, carry = worker.wait()
                        break
                    except WorkerLost as failure:
                        lost = failure
                rows[worker] = last
                ends += ended
                count, first = worker.job.count, worker.job.first
                for number, index in enumerate(indices):
                    final = tree.take(obs, number)
                    buffer.keep_final(index // count, first + index % count, final)
                self._begun[worker.job.columns] = begun
                carries.append(carry)
        self._pool.end_round()
        ends.sort(key=lambda end: (end[0], end[1].env))
        self.episodes = [episode for _, episode in ends]
        buffer.check(self._name)
        self._rows = most = max(rows.values())
        for worker, last in rows.items():  # idle environments keep their observations
            buffer.hold(last, most, worker.job.columns)
        self._newest = buffer.saved_obs(most)
        carry = jax.tree.map(lambda *leaves: np.concatenate(leaves), *carries)
        return buffer.trajectory()._replace(carry=carry), None

    def commit(self) -> None:
        self._steps += self._rows
        self._stateless.clear()
        self._ask_stateful("commit", self._steps)

    @property
    def steps_collected(self) -> int:
        valid = self._buffers[self._slot].valid
        return self._rows * self.num_envs if valid is None else int(valid.sum())

    def work(self) -> dict[str, Work]:
        return self._pool.work(self._workers)

    def traffic(self) -> dict[str, float]:
        return self._pool.traffic()

    def state(self, environments: Any = None) -> dict[str, Any]:
        """Return the workers' states (`CentralSampler.state`), concatenated."""
        for worker in self._stateful():
            with self._keep_loss(worker):
                worker.drain_replies()
        known = self._ask_stateful("state")
        states = [known.get(worker) or self._lost_state(worker) for worker in self._workers]
        joined: dict[str, Any] = {"steps": self._steps}
        for name in ("episode", "origin", "actions", "values"):
            if any(name not in state for state in states):
                continue
            joined[name] = [value for state in states for value in state[name]]
        carries = [state["carry"] for state in states if "carry" in state]
        if carries:
            # Zeros where a worker was lost: its environments begin new episodes.
            rows = [len(state["episode"]) for state in states]
            lost = [[np.zeros((n, *a.shape[1:]), a.dtype) for a in carries[0]] for n in rows]
            each = [state.get("carry", none) for state, none in zip(states, lost, strict=True)]
            joined["carry"] = [np.concatenate(parts) for parts in zip(*each, strict=True)]
        joined["obs"] = tree.map(
            lambda *parts: np.concatenate(parts), *(state["obs"] for state in states)
        )
        return joined

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Replay each environment in its worker; see `CentralSampler.restore`."""
        check_counts(state, self.num_envs)

        def part(worker: PoolWorker) -> dict[str, Any]:
            columns, apart = worker.job.columns, ("steps", "obs", "carry")
            parts = {n: value[columns] for n, value in state.items() if n not in apart}
            if "carry" in state:
                parts["carry"] = [leaf[columns] for leaf in state["carry"]]
            return parts | {"steps": state["steps"], "obs": tree.take(state["obs"], columns)}

        restored = self._ask_all("restore", {worker: (part(worker),) for worker in self._workers})
        self.restarted, self.restart_reasons = [], {}
        for worker, (reasons, restarted) in zip(self._workers, restored, strict=True):
            first = worker.job.first
            for reason, found in reasons.items():
                numbers = [(first + env, episode) for env, episode in found]
                self.restart_reasons.setdefault(reason, []).extend(numbers)
            self.restarted += [(first + env, last, new) for env, last, new in restarted]
        self._steps, self._slot = int(state["steps"]), 0
        self._begun[:] = state["episode"]
        self._newest = self._buffers[0].saved_obs(0)  # the workers have written them
        for env, *_ in self.restarted:
            self._begun[env] += 1
        return restart_notes(self.restart_reasons)

    def close(self) -> None:
        self._pool.close()

    # --- Inside -------------------------------------------------------------------------------

    def _ask_all(self, method: str, arguments: Mapping[PoolWorker, tuple[Any, ...]]) -> list[Any]:
        """Call a method that begins a worker's episodes; return the results in order.

        A worker that is lost with its machine is restarted, and called again. Raise
        `EnvironmentFailure` if one is lost for another reason.
        """
        results: list[Any] = []
        with self._pool.fatal():
            losses: dict[PoolWorker, MachineLost] = {}
            for worker, given in arguments.items():
                try:
                    worker.tell(method, *given)
                except MachineLost as lost:
                    losses[worker] = lost
            for worker, given in arguments.items():
                lost = losses.get(worker)
                while True:
                    try:
                        if lost is not None:
                            self._pool.restart(lost, playing=False)
                            worker.tell(method, *given)
                        results.append(worker.wait())
                        break
                    except MachineLost as failure:
                        lost = failure
        return results

    def _stateful(self) -> list[PoolWorker]:
        return [worker for worker in self._workers if worker not in self._stateless]

    def _ask_stateful(self, method: str, *arguments: Any) -> dict[PoolWorker, Any]:
        """Call a method of the workers that were not lost since the last commit; return the
        results of those that are not lost meanwhile."""
        results: dict[PoolWorker, Any] = {}
        for worker in self._stateful():
            with self._keep_loss(worker):
                worker.tell(method, *arguments)
        for worker in self._stateful():
            with self._keep_loss(worker):
                results[worker] = worker.wait()
        return results

    @contextmanager
    def _keep_loss(self, worker: PoolWorker) -> Iterator[None]:
        """Return a context in which the loss of a worker, or the error with which it ended, is left
        to the next `collect`: the others still have their states."""
        try:
            yield
        except WorkerLost as lost:
            self._stateless.add(worker)
            self._losses[worker] = lost
        except LASTING as error:
            self._stateless.add(worker)
            self._refusal = error

    def _begin_args(self, worker: PoolWorker, slot: int) -> tuple[int, list[int], int]:
        return slot, self._begun[worker.job.columns].tolist(), self._steps

    def _tell(self, worker: PoolWorker, slot: int) -> WorkerLost | None:
        try:
            worker.tell("collect", slot, self._remote.version)
        except WorkerLost as lost:
            return lost
        return None

    def _restart(self, lost: WorkerLost, slot: int) -> WorkerLost | None:
        """Restart a lost worker with new episodes, and let it collect; return its next loss."""
        worker = lost.worker
        self._stateless.add(worker)
        self._pool.restart(lost)
        self.lost += worker.job.count
        columns = worker.job.columns
        self._begun[columns] += 1
        try:
            worker.tell("begin", *self._begin_args(worker, slot))
            worker.wait()
        except WorkerLost as failure:
            return failure
        buffer = self._buffers[slot]
        envs = set(range(columns.start, columns.stop))
        self.restarted = [restart for restart in self.restarted if restart[0] not in envs]
        if self._newest is not None:
            rows, _ = self._newest
            self.restarted += [
                (env, tree.take(rows, (-1, env)), buffer.first_obs(env)) for env in sorted(envs)
            ]
        return self._tell(worker, slot)

    def _lost_state(self, worker: PoolWorker) -> dict[str, Any]:
        """Return a state for a restarted worker: its environments begin new episodes on resume."""
        columns, count = worker.job.columns, worker.job.count
        buffer = self._buffers[0]
        obs = buffer.whole_obs(*(self._newest or buffer.saved_obs(0)))
        episode = self._begun[columns].tolist()
        return {
            "episode": episode, "origin": episode, "actions": [None] * count,
            "values": [[0.0, 0.0]] * count, "obs": tree.take(obs, columns),
        }  # fmt: skip
