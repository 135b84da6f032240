"""The overlapped schedule: it collects the next trajectories while another thread learns."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import jax.numpy as jnp
import numpy as np

from flatout.engine.learn import LearnResult
from flatout.engine.schedule import Pending, Schedule
from flatout.engine.state import RunState
from flatout.errors import CheckpointError, EnvironmentFailure, Interrupt
from flatout.spans import Work
from flatout.storage.checkpoint import refuse_nonsense
from flatout.types import Metrics, Snapshot

WAITS = ("policy_lag", "time/queue_s", "time/sampler_wait_s", "time/learner_wait_s")
"""Metrics of each iteration that are summed up for `stats`."""

PUBLISHED = "published/"
"""Prefix, in snapshots, of acting parameters."""


class OverlappedSchedule(Schedule):
    """A schedule that collects trajectory k with version max(0, k - lag) while it learns.

    This thread collects, and another learns: on a CPU the dispatches of one thread run in order, so
    acting would wait for learning. The version that acts depends only on k, never on timing.

    Args:
        flow: see `Schedule`; the learner must have its own `Spans`, for its thread.
        lag: versions by which acting may be behind, at least 1. The sampler needs lag + 1 buffers.
    """

    def __init__(self, *flow: Any, lag: int = 1) -> None:
        super().__init__(*flow)
        self._lag = lag
        self._collected = 0  # trajectories so far
        self._versions: dict[int, tuple[Any, ...]] = {}  # acting parameters by version
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="learner")
        self._learned_at = 0.0  # end of the last learning
        self._worked = {"learn": 0.0, "replay": 0.0}  # seconds in total, by span
        self._failure: EnvironmentFailure | None = None  # raised by the next call
        self._learned_from = 0  # trajectories in this process
        self._totals = dict.fromkeys(WAITS, 0.0)

    @property
    def params(self) -> tuple[Any, ...]:
        return self._versions[self._version]

    def _continue_from(self, state: RunState) -> None:
        super()._continue_from(state)
        self._versions = {self._version: _copied(self._published)}

    def stats(self) -> dict[str, float]:
        """Return also the mean policy lag and queue time, and both threads' total waiting time."""
        lag, queue, sampler, learner = (self._totals[name] for name in WAITS)
        count = max(self._learned_from, 1)
        return super().stats() | {
            "policy_lag": lag / count,
            "queue_s": queue / count,
            "sampler_wait_s": sampler,
            "learner_wait_s": learner,
        }

    def work(self) -> dict[str, Work]:
        return {"learner": Work(dict(self._worked))} | super().work()

    def snapshot(self) -> Snapshot:
        snapshot = super().snapshot()
        for version, packed in self._versions.items():
            for index, array in enumerate(packed):
                snapshot.arrays[f"{PUBLISHED}{version}/{index}"] = np.asarray(array)
        snapshot.data["published"] = {str(v): len(packed) for v, packed in self._versions.items()}
        return snapshot

    def restore(self, snapshot: Snapshot) -> list[str]:
        """Restore a snapshot of an overlapped or a serial schedule; see `Schedule.restore`."""
        notes = super().restore(snapshot)
        self._collected = self._version + len(self._pending)
        for pending in self._pending:
            pending.ready = time.perf_counter()
        self._versions = {
            int(version): tuple(
                snapshot.arrays[f"{PUBLISHED}{version}/{index}"] for index in range(count)
            )
            for version, count in snapshot.data.get("published", {}).items()
        } | self._versions
        newest = self._versions[self._version]
        for packed in self._versions.values():
            shapes = [(array.shape, array.dtype) for array in packed]
            if shapes != [(array.shape, array.dtype) for array in newest]:
                raise CheckpointError("the acting parameters belong to another network.")
            for array in packed:
                refuse_nonsense("of acting parameters", np.asarray(array))
        return notes

    def close(self) -> None:
        self._thread.shutdown()
        super().close()

    def _iterate(self) -> Metrics:
        if self._failure is not None:
            raise self._failure
        begin = time.perf_counter()
        if not self._pending:
            self._gather()
        idle = time.perf_counter() - begin
        pending = self._pending.popleft()
        queued = time.perf_counter() - pending.ready
        job = self._thread.submit(self._learn, self._state, pending)
        try:
            # Collect at least one trajectory, then more until learning ends or the lag is reached.
            while self._collected <= self._version + self._lag and not (
                self._pending and job.done()
            ):
                self._gather()
        except Interrupt:
            pass  # finish learning; the next collection raises again
        except EnvironmentFailure as failure:
            self._failure = failure  # finish learning; the next call raises
        finally:
            begin = time.perf_counter()
            with self._spans.span("wait"):
                wait([job])
            waited = time.perf_counter() - begin
            idle += max(begin - self._learned_at, 0.0) if job.done() else 0.0
        state, packed, values = job.result()
        # Meanwhile, collecting has advanced the environments.
        self._state = state._replace(environments=self._state.environments)
        self._version += 1
        self._versions[self._version] = _copied(packed)
        oldest = self._acting(self._collected)
        self._versions = {v: packed for v, packed in self._versions.items() if v >= oldest}
        values |= {
            "policy_lag": float(self._version - 1 - pending.version),
            "time/queue_s": queued,
            "time/sampler_wait_s": waited,
            "time/learner_wait_s": idle,
        }
        self._learned_from += 1
        for name in WAITS:
            self._totals[name] += values[name]
        return self._metrics(values, pending)

    def _gather(self) -> None:
        """Collect the next trajectory, with the version that its number prescribes."""
        version = self._acting(self._collected)
        self._publish(self._versions[version], version)
        pending = self._collect(version)
        self._sampler.commit()
        pending.ready = time.perf_counter()
        self._pending.append(pending)
        self._collected += 1

    def _acting(self, trajectory: int) -> int:
        """Return the version that acts in a trajectory: `lag` behind it, or the oldest one left."""
        return max(trajectory - self._lag, min(self._versions))

    def _learn(self, state: RunState, pending: Pending) -> LearnResult:
        begin = time.perf_counter()
        state, packed, values = super()._learn(state, pending)
        self._learned_at = time.perf_counter()
        took = self._learned_at - begin
        # Without an update the trajectory was only stored.
        self._worked["learn" if values["updates"] else "replay"] += took
        return state, packed, values | {"time/learn_s": took}


def _copied(packed: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return published parameters, copied where the next update reuses their memory."""
    vector, *large = packed
    return (vector, *(jnp.copy(array) for array in large))
