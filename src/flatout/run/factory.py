"""A run's components, made one by one: each can be made, compiled and timed alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

from flatout.algorithms.base import ACT, INIT, LEARN, RolloutSpec, raw_key, trajectory_shapes
from flatout.algorithms.registry import build_algorithm
from flatout.buffers.make import build_buffer
from flatout.buffers.rollout import final_chunks
from flatout.config.placement import shares
from flatout.envs.task import Task
from flatout.hardware import backend
from flatout.learner.learner import Learner
from flatout.learner.memory import Expectation, learned_mb, size_mb
from flatout.run.components import Job, learning_mesh
from flatout.run.evaluate import Evaluator
from flatout.samplers.base import Sampler
from flatout.samplers.make import ActingPolicies, make_sampler, start_workers
from flatout.samplers.processes.pool import WorkerPool
from flatout.schedules.base import Schedule
from flatout.schedules.overlapped import OverlappedSchedule
from flatout.schedules.serial import SerialSchedule
from flatout.spans import Spans
from flatout.types import NAMED, UserCode


class Factory:
    """Makes the components of one run. Nothing is made before it is asked for.

    Args:
        job: the settings and where everything will be; its devices are started.
        task: the environment.
        code: what the user passes as it is.

    Attributes:
        algorithm: the pure functions.
        rollout: what algorithm and data flow ask of the sampler.
        expectation: of memory, as far as it is known.
    """

    def __init__(self, job: Job, task: Task, code: UserCode = NAMED) -> None:
        self._job, self._task, self._code = job, task, code
        self.algorithm = build_algorithm(job.config, *task.spaces, code, job.placement)
        horizon, lag = self.algorithm.horizon, job.placement.lag
        self.rollout = RolloutSpec(
            horizon, self.algorithm.episodes, final_chunks(horizon, task.limit),
            self.algorithm.replay is not None, slots=lag + 1,
        )  # fmt: skip
        trajectories = self.rollout.slots * size_mb(self.shapes)
        self.expectation = Expectation(*learned_mb(self.algorithm.shapes), trajectories)
        self.expectation.check(job.placement, job.hardware)

    @cached_property
    def acting(self) -> ActingPolicies:
        """The policies of all acting groups, not compiled."""
        job = self._job
        return ActingPolicies(
            shares(job.placement, job.config.env.envs), self.algorithm, self._task,
            raw_key(job.config.run.seed, ACT), backend.device, job.config.run.precision,
        )  # fmt: skip

    @cached_property
    def shapes(self) -> Any:
        """The shapes of a trajectory."""
        layout = self.acting.policies[0].layout
        num_envs = self._job.config.env.envs
        return trajectory_shapes(self.rollout, num_envs, self._task.obs_spec, layout)

    def learner(self) -> Learner:
        """The learner with its buffer, not compiled.

        Raises:
            FlatoutError: replay does not fit the devices; nothing large is allocated then.
        """
        job, run = self._job, self._job.config.run

        def expect(replay: tuple[float, float]) -> None:
            self.expectation = replace(self.expectation, replay=replay)
            self.expectation.check(job.placement, job.hardware)

        with job.spans.span("compile"):  # its own small programs
            buffer = build_buffer(
                job.config, self._task, self.algorithm, job.placement, self.shapes, expect
            )
        # A learner in a thread of its own has spans of its own.
        spans = Spans() if job.placement.schedule == "overlapped" else job.spans
        return Learner(
            self.algorithm, buffer, learning_mesh(job.config, job.placement),
            raw_key(run.seed, INIT), raw_key(run.seed, LEARN), spans, run.precision,
        )  # fmt: skip

    def pool(self) -> WorkerPool | None:
        """The actor processes, started; None with ``sampler=inline``."""
        job = self._job
        if job.placement.sampler != "processes":
            return None

        def report(note: str) -> None:
            job.notes.append(note)
            job.announce(note)

        return start_workers(
            job.config, self._task, self.acting, self.rollout, report, code=self._code,
            local=job.placement.inference == "local",
        )  # fmt: skip

    def sampler(self, pool: WorkerPool | None = None) -> Sampler:
        """The sampler, its environments open."""
        job = self._job
        return make_sampler(job.config, self._task, self.acting, self.rollout, job.spans, pool)

    def evaluator(self) -> Evaluator:
        """What plays evaluation episodes, its policy not compiled."""
        run = self._job.config.run
        device = backend.device(self._job.placement.act[0])
        return Evaluator(
            self.algorithm, self._task, run.eval_episodes, run.seed, device,
            precision=run.precision,
        )  # fmt: skip

    def policies(self, pool: WorkerPool | None = None) -> list[Callable[[], Any]]:
        """What compiles the policies of this process."""
        return [] if pool is not None and pool.local else [p.compile for p in self.acting.policies]

    def schedule(self, sampler: Sampler, learner: Learner, pool: WorkerPool | None) -> Schedule:
        """The data flow between a sampler and a learner."""
        job = self._job
        policies = self.acting.policies
        if pool is not None and pool.local:
            policies = [self.acting.remote(pool)]
        flow = (sampler, policies, learner, job.spans, job.discardable, self.algorithm.advanced)
        if job.placement.schedule == "overlapped":
            return OverlappedSchedule(*flow, lag=job.placement.lag)
        return SerialSchedule(*flow)
