"""Collect the next trajectories while learning from this one."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import jax.numpy as jnp
import numpy as np

from flatout.errors import CheckpointError, EnvironmentFailure, Interrupt
from flatout.schedules.base import Schedule
from flatout.schedules.pending import Pending
from flatout.spans import Work
from flatout.storage.checkpoint import refuse_nonsense
from flatout.types import Metrics, Snapshot

WAITS = ("policy_lag", "time/queue_s", "time/sampler_wait_s", "time/learner_wait_s")
"""Metrics of each iteration that the summary sums up."""

PUBLISHED = "published/"
"""Prefix of the acting parameters in snapshots."""


class OverlappedSchedule(Schedule):
    """Trajectory k is collected with version max(0, k - lag), while the learner uses earlier ones.

    This thread collects, another learns: on a CPU one thread's dispatches run in order, and acting
    would wait for learning. The version that acts depends on k alone, never on timing.

    Args:
        lag: versions that acting may be behind, at least 1; the sampler needs lag + 1 buffers. For
            the other arguments see `Schedule`; the learner has spans of its own thread.
    """

    def __init__(self, *flow: Any, lag: int = 1) -> None:
        super().__init__(*flow)
        self._lag = lag
        self._collected = 0  # trajectories
        self._bundles: dict[int, tuple[Any, ...]] = {}  # acting parameters by version
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="learner")
        self._learned_at = 0.0  # end of the last learning
        self._worked = {"learn": 0.0, "replay": 0.0}  # seconds in total, by span
        self._failure: EnvironmentFailure | None = None  # raised after learning has ended
        self._learned_from = 0  # trajectories in this process
        self._totals = dict.fromkeys(WAITS, 0.0)

    def publish_newest(self) -> None:
        super().publish_newest()
        self._bundles = {self._version: self._kept()}

    def stats(self) -> dict[str, float]:
        """Adds the mean policy lag and queue time, and the total waits of both sides."""
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
        for version, bundle in self._bundles.items():
            for index, array in enumerate(bundle):
                snapshot.arrays[f"{PUBLISHED}{version}/{index}"] = np.asarray(array)
        snapshot.data["published"] = {str(v): len(bundle) for v, bundle in self._bundles.items()}
        return snapshot

    def restore(self, snapshot: Snapshot) -> list[str]:
        """Restore a snapshot, also a serial schedule's."""
        notes = super().restore(snapshot)
        self._collected = self._version + len(self._pending)
        for pending in self._pending:
            pending.ready = time.perf_counter()
        self._bundles = {
            int(version): tuple(
                snapshot.arrays[f"{PUBLISHED}{version}/{index}"] for index in range(count)
            )
            for version, count in snapshot.data.get("published", {}).items()
        } | self._bundles
        newest = self._bundles[self._version]
        for bundle in self._bundles.values():
            shapes = [(array.shape, array.dtype) for array in bundle]
            if shapes != [(array.shape, array.dtype) for array in newest]:
                raise CheckpointError("the parameters that act are those of another network.")
            for array in bundle:
                refuse_nonsense("of parameters that act", np.asarray(array))
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
        job = self._thread.submit(self._learn, pending)
        try:
            # With lag 1 always the next trajectory; with more, as many as fit into learning.
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
        values = job.result()
        self._version += 1
        self._bundles[self._version] = self._kept()
        oldest = self._acting(self._collected)
        self._bundles = {v: bundle for v, bundle in self._bundles.items() if v >= oldest}
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
        """Collect the next trajectory with the version for its number."""
        version = self._acting(self._collected)
        self._publish(self._bundles[version], version)
        pending = self._collect(version)
        self._sampler.commit()
        pending.ready = time.perf_counter()
        self._pending.append(pending)
        self._collected += 1

    def _acting(self, trajectory: int) -> int:
        """The version that acts in a trajectory; after a resume at least the oldest saved one."""
        return max(trajectory - self._lag, min(self._bundles))

    def _learn(self, pending: Pending) -> dict[str, float]:
        begin = time.perf_counter()
        values = super()._learn(pending)
        self._learned_at = time.perf_counter()
        took = self._learned_at - begin
        # Without an update, what was collected was stored.
        self._worked["learn" if values["updates"] else "replay"] += took
        return values | {"time/learn_s": took}

    def _kept(self) -> tuple[Any, ...]:
        """Copies of the newest parameters: the next update reuses their memory."""
        vector, *large = self.params
        return (vector, *(jnp.copy(array) for array in large))
