"""The env group whose environments step in worker processes. `CentralSampler` drives it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout import tree
from flatout.engine.groups import EnvCounters, EnvGroup, LostEnv
from flatout.engine.workers import protocol
from flatout.engine.workers.pool import Worker, WorkerLost, WorkerPool
from flatout.spans import Work
from flatout.types import Episode

if TYPE_CHECKING:
    from flatout.envs.base import Ended


class WorkerEnvGroup(EnvGroup):
    """The environments of consecutive workers of a pool; results come through shared memory."""

    span = "wait"

    def __init__(self, pool: WorkerPool, workers: Sequence[Worker]) -> None:
        shared_arrays = pool.shared_arrays
        self._pool, self._workers = pool, list(workers)
        self.first = workers[0].job.first
        self.num_envs = sum(worker.job.count for worker in workers)
        columns = slice(self.first, self.first + self.num_envs)
        self._obs = protocol.observations(shared_arrays, columns)
        self._actions = shared_arrays["actions"][columns]
        self._active = shared_arrays["active"][columns]
        self._flags = shared_arrays["flags"][columns]
        self._finals = tree.take(tree.found("finals", shared_arrays.arrays), columns)
        self._returns = shared_arrays["returns"][columns]
        self._lengths = shared_arrays["lengths"][columns]
        self._counters = shared_arrays["counters"][columns]
        self._infos = shared_arrays["infos"][columns]
        self._last_step = (0, 0, False)
        self._waiting: list[Worker] = []
        self._losses: list[WorkerLost] = []
        self._lives = np.zeros(self.num_envs, np.bool_)
        self.life_lost: np.ndarray | None = self._lives

    def reset_all(self) -> None:
        calls = {worker: (0, 0, [0] * worker.job.count) for worker in self._workers}
        self._pool.ask("reset", calls)

    def send(self, slot: int, t: int, actions: np.ndarray, active: Sequence[int] | None) -> None:
        self._actions[:] = actions
        some_active = active is not None
        if active is not None:
            self._active[:] = False
            self._active[list(active)] = True
        self._last_step = (slot, t, some_active)
        self._waiting = list(self._workers)
        self._step(self._workers)

    def receive(self, ended: Ended) -> list[LostEnv]:
        lost_workers = [lost.worker for lost in self._losses]
        for worker in self._waiting:
            if worker not in lost_workers:
                try:
                    worker.wait()
                except WorkerLost as lost:
                    self._losses.append(lost)
        if self._losses:
            return self._restart()
        self._waiting = []
        flags = self._flags
        if flags.any():
            np.not_equal(flags & protocol.LIFE_LOST, 0, out=self._lives)
            for env in np.flatnonzero(flags & protocol.ENDED).tolist():
                flag = int(flags[env])
                terminated, truncated = flag & protocol.TERMINATED, flag & protocol.TRUNCATED
                final = tree.take(self._finals, env)
                ended(env, bool(terminated), bool(truncated), final)
        else:
            self._lives.fill(False)
        return []

    def repeat_step(self, actions: np.ndarray) -> None:
        self._actions[:] = actions
        self._step(self._waiting)

    def work(self) -> dict[str, Work]:
        return self._pool.work(self._workers)

    def finished(self, env: int) -> Episode:
        total, length = float(self._returns[env]), int(self._lengths[env])
        return Episode(self.first + env, total, length, info=protocol.read_info(self._infos[env]))

    def counters(self) -> EnvCounters:
        steps_to_replay, episode, seeded_episode = self._counters.T.tolist()
        return EnvCounters(episode, seeded_episode, steps_to_replay)

    def reset(self, env: int, episode: int, slot: int = 0) -> None:
        worker = next(w for w in self._workers if env in range(self.num_envs)[self._columns(w)])
        episodes: list[int | None] = [None] * self.num_envs
        episodes[env] = episode
        self._pool.ask("reset", {worker: (slot, 0, episodes[self._columns(worker)])})

    def replay_all(
        self,
        seeded: Sequence[int],
        episodes: Sequence[int],
        actions: Sequence[np.ndarray | None],
    ) -> list[bool]:
        columns = {worker: self._columns(worker) for worker in self._workers}
        calls = {
            worker: (seeded[part], episodes[part], actions[part])
            for worker, part in columns.items()
        }
        return list(itertools.chain(*self._pool.ask("replay", calls)))

    def close(self) -> None:
        self._pool.close()

    # --- Inside -------------------------------------------------------------------------------

    def _columns(self, worker: Worker) -> slice:
        """Return a worker's columns within this group."""
        start = worker.job.first - self.first
        return slice(start, start + worker.job.count)

    def _step(self, workers: Sequence[Worker]) -> None:
        slot, t, some_active = self._last_step
        for worker in workers:
            try:
                worker.step(slot, t, some_active)
            except WorkerLost as lost:
                self._losses.append(lost)

    def _restart(self) -> list[LostEnv]:
        """Restart lost workers. Their environments begin new episodes, whose first observations
        overwrite row t: the observations before the lost step."""
        slot, t, _ = self._last_step
        losses: list[LostEnv] = []
        by_worker: dict[Any, WorkerLost] = {lost.worker: lost for lost in self._losses}
        self._waiting = list(by_worker)
        for worker, lost in by_worker.items():
            columns = self._columns(worker)
            before = tree.map(np.copy, tree.take(self._obs, (slot, t, columns)))
            episodes = (self._counters[columns, protocol.EPISODE] + 1).tolist()
            while True:
                self._pool.restart(lost)
                try:
                    worker.tell("reset", slot, t, episodes)
                    worker.wait()
                    break
                except WorkerLost as failure:
                    lost = failure
            losses += [(columns.start + i, tree.take(before, i)) for i in range(worker.job.count)]
        self._losses = []
        return losses
