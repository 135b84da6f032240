"""The sampler whose actor processes act themselves, each with a copy of the actor on its CPU.

The parent writes parameters into shared memory; each worker acts and steps for a whole trajectory.
Workers import JAX for this: docs/placement.md gives the costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from flatout import tree
from flatout.engine.sampler import Sampler, check_counts
from flatout.engine.trajectory import RolloutBuffer
from flatout.engine.workers.pool import Worker, WorkerLost, WorkerPool
from flatout.engine.workers.protocol import PARAMS
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
        self._newest: Obs | None = None  # observations after the last trajectory
        self._stateless: set[Worker] = set()  # restarted since the last commit

    @property
    def obs_shapes(self) -> Obs:
        return tree.take(self._buffers[0].obs, (0, 0))

    def start(self) -> None:
        self._pool.ask("begin", {worker: self._begin_args(worker, 0) for worker in self._workers})

    def collect(self, environments: Any = None, params: Any = ()) -> tuple[Trajectory, None]:
        slot = self._slot = (self._slot + 1) % len(self._buffers)
        buffer = self._buffers[slot]
        buffer.forget()
        self.restarted = []
        ends: list[tuple[int, Episode]] = []
        rows: dict[Worker, int] = {}
        carries: list[Any] = []
        with self._spans.span("wait"):
            losses = {worker: self._tell(worker, slot) for worker in self._workers}
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
        ends.sort(key=lambda end: (end[0], end[1].env))
        self.episodes = [episode for _, episode in ends]
        buffer.check(self._name)
        self._rows = most = max(rows.values())
        for worker, last in rows.items():  # idle environments keep their observations
            columns = worker.job.columns
            tree.put(buffer.obs, (most, columns), tree.take(buffer.obs, (last, columns)))
        self._newest = tree.map(lambda leaf: leaf[most].copy(), buffer.obs)
        carry = jax.tree.map(lambda *leaves: np.concatenate(leaves), *carries)
        return buffer.trajectory()._replace(carry=carry), None

    def commit(self) -> None:
        self._steps += self._rows
        self._pool.ask("commit", dict.fromkeys(self._workers, (self._steps,)))
        self._stateless.clear()

    @property
    def steps_collected(self) -> int:
        valid = self._buffers[self._slot].valid
        return self._rows * self.num_envs if valid is None else int(valid.sum())

    def work(self) -> dict[str, Work]:
        return self._pool.work(self._workers)

    def state(self, environments: Any = None) -> dict[str, Any]:
        """Return the workers' states (`CentralSampler.state`), concatenated."""
        able = [worker for worker in self._workers if worker not in self._stateless]
        with self._pool.fatal():
            for worker in able:
                worker.drain_replies()
        known = dict(zip(able, self._pool.ask("state", dict.fromkeys(able, ())), strict=True))
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

        def part(worker: Worker) -> dict[str, Any]:
            columns, apart = worker.job.columns, ("steps", "obs", "carry")
            parts = {n: value[columns] for n, value in state.items() if n not in apart}
            if "carry" in state:
                parts["carry"] = [leaf[columns] for leaf in state["carry"]]
            return parts | {"steps": state["steps"], "obs": tree.take(state["obs"], columns)}

        restored = self._pool.ask("restore", {worker: (part(worker),) for worker in self._workers})
        notes: list[str] = []
        self.restarted = []
        for worker, (worker_notes, restarted) in zip(self._workers, restored, strict=True):
            notes += worker_notes
            first = worker.job.first
            self.restarted += [(first + env, last, new) for env, last, new in restarted]
        self._steps, self._slot = int(state["steps"]), 0
        self._begun[:] = state["episode"]
        self._newest = tree.map(np.array, state["obs"])
        for env, _, new in self.restarted:
            tree.put(self._newest, env, new)
            self._begun[env] += 1
        return notes

    def close(self) -> None:
        self._pool.close()

    # --- Inside -------------------------------------------------------------------------------

    def _begin_args(self, worker: Worker, slot: int) -> tuple[int, list[int], int]:
        return slot, self._begun[worker.job.columns].tolist(), self._steps

    def _tell(self, worker: Worker, slot: int) -> WorkerLost | None:
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
            self.restarted += [
                (env, tree.take(self._newest, env), buffer.first_obs(env)) for env in sorted(envs)
            ]
        return self._tell(worker, slot)

    def _lost_state(self, worker: Worker) -> dict[str, Any]:
        """Return a state for a restarted worker: its environments begin new episodes on resume."""
        columns, count = worker.job.columns, worker.job.count
        obs = self._newest
        if obs is None:
            obs = tree.take(self._buffers[0].obs, 0)
        episode = self._begun[columns].tolist()
        return {
            "episode": episode, "origin": episode, "actions": [None] * count,
            "values": [[0.0, 0.0]] * count, "obs": tree.take(obs, columns),
        }  # fmt: skip
