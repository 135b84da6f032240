"""A run's components, made one by one: each can be made, compiled and timed alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from flatout.algorithms.base import RolloutSpec, spec_shapes, trajectory_shapes
from flatout.algorithms.registry import build_algorithm
from flatout.config.placement import DeviceName
from flatout.config.workers import assign_groups
from flatout.engine.act import Policy
from flatout.engine.device import DeviceSampler
from flatout.engine.finals import truncations
from flatout.engine.fused import FusedSchedule
from flatout.engine.learn import Learner
from flatout.engine.loop import for_all
from flatout.engine.make_buffer import build_buffer, expected_mb
from flatout.engine.make_sampler import ActingPolicies, make_sampler, start_workers
from flatout.engine.memory import Expectation, divided_mb, learned_mb, size_mb
from flatout.engine.overlapped import OverlappedSchedule
from flatout.engine.rollout import Rollout
from flatout.engine.rollout_state import least_truncation, most_truncations
from flatout.engine.sampler import Sampler
from flatout.engine.schedule import Schedule, SerialSchedule
from flatout.engine.workers.local import ParamBroadcast
from flatout.engine.workers.pool import WorkerPool
from flatout.frames import most_frames
from flatout.hardware import backend
from flatout.randomness import ACT, ENVS, INIT, LEARN, raw_key
from flatout.run.evaluate import Evaluator
from flatout.run.job import Job, learning_mesh
from flatout.run.opening import other_environment
from flatout.spans import Spans


class Factory:
    """Makes the components of one run. Nothing is made before it is asked for.

    Args:
        job: the run; its devices are started.

    Attributes:
        algorithm: the pure functions.
        rollout: the requirements of algorithm and data flow for the sampler.
        expectation: of memory, before anything is compiled.
    """

    def __init__(self, job: Job) -> None:
        run = job.run
        assert run.task is not None
        self._job, self._run, self._task = job, run, run.task
        self.algorithm = build_algorithm(run.config, *run.task.spaces, run.code, run.placement)
        horizon, lag = self.algorithm.horizon, run.placement.lag
        most = truncations(horizon, run.task.limit)
        if run.env is not None:
            most = most_truncations(run.env, horizon)
        self.rollout = RolloutSpec(
            horizon, self.algorithm.episodes, most,
            self.algorithm.replay is not None, slots=lag + 1,
            frames=run.env is None and most_frames(run.task.obs_spec) > 1,
            terminal=self.algorithm.replay is not None and self.algorithm.replay.hindsight > 0,
        )  # fmt: skip
        replay = expected_mb(
            run.config, run.task.obs_spec, self.algorithm.replay, run.placement, self.shapes
        )
        stacks = 0.0
        if self.rollout.frames and self.algorithm.replay is None:
            stacks = size_mb(spec_shapes(run.task.obs_spec, horizon, run.config.env.envs))
        self.expectation = Expectation(
            *learned_mb(self.algorithm.shapes), self.rollout.slots * size_mb(self.shapes), replay,
            divided=divided_mb(self.algorithm.shapes, len(run.placement.learn)), stacks=stacks,
        )  # fmt: skip

    @cached_property
    def acting(self) -> ActingPolicies:
        """The policies of all acting groups, not compiled."""
        return ActingPolicies(
            assign_groups(self._run.placement, self._run.config.env.envs),
            self.algorithm, self._task, raw_key(self._run.config.run.seed, ACT), backend.device,
            self._run.config.run.precision, self.rollout.frames,
        )  # fmt: skip

    @cached_property
    def shapes(self) -> Any:
        """The shapes of a trajectory."""
        layout = self.acting.policies[0].layout
        num_envs, specs = self._run.config.env.envs, self._task.obs_spec
        return self._job.programs.get(
            ("trajectory", self.rollout, num_envs),
            lambda: trajectory_shapes(
                self.rollout, num_envs, specs, layout, self.algorithm.carry_shapes(num_envs)
            ),
        )

    def policy(self, device: DeviceName, count: int) -> Policy:
        """Return a policy for `count` environments on any device, not compiled."""
        run = self._run.config.run
        return Policy(
            self.algorithm, self._task.obs_spec, count, backend.device(device),
            raw_key(run.seed, ACT), run.precision, self.rollout.frames,
        )  # fmt: skip

    def learner(self) -> Learner:
        """Return the learner with its buffer, not compiled.

        Raises:
            NoRoomError: the run does not fit the devices; nothing large is allocated then.
        """
        job, run = self._job, self._run.config.run
        self.expectation.check(self._run.placement, self._run.hardware)
        with job.spans.span("compile"):  # its own small programs
            buffer = build_buffer(
                self._run.config,
                self._task,
                self.algorithm,
                self._run.placement,
                self.shapes,
                None if self._run.env is None else least_truncation(self._run.env),
            )
        # A learner in a thread of its own has spans of its own.
        spans = Spans() if self._run.placement.overlapped else job.spans
        return Learner(
            self.algorithm, buffer, learning_mesh(self._run.config, self._run.placement),
            raw_key(run.seed, INIT), raw_key(run.seed, LEARN), spans, run.precision,
            job.programs,
        )  # fmt: skip

    @cached_property
    def device_sampler(self) -> DeviceSampler:
        """The sampler of environments on the device, not compiled."""
        job, run = self._job, self._run.config.run
        env, config = self._run.env, self._run.config.env
        assert env is not None
        each = config.envs // run.shards
        rollout = Rollout(env, self.algorithm, self.rollout, each, config.clip_reward)
        keys = np.stack([raw_key(run.seed, ENVS, number) for number in range(run.shards)])
        keys = keys[0] if run.shards == 1 else keys
        if run.shards == 1:  # a program of several members, or a user, may map over it
            rollout = replace(rollout, shared=for_all)
        return DeviceSampler(
            rollout, backend.device(self._run.placement.act[0]), keys,
            raw_key(run.seed, ACT), job.spans, run.precision, job.programs,
        )  # fmt: skip

    def pool(self) -> WorkerPool | None:
        """Return the started actor processes; None with ``sampler=inline``."""
        if not self._run.placement.in_processes:
            return None

        return start_workers(
            self._run.config, self._task, self.acting, self.rollout, self._report,
            code=self._run.code,
            local=self._run.placement.acts_in_workers, cluster=self._run.placement.on_cluster,
        )  # fmt: skip

    def _report(self, note: str) -> None:
        """Announce a sentence, which the summary has among its notes, too."""
        self._run.notes.append(note)
        self._job.announce(note)

    def sampler(self, pool: WorkerPool | None = None) -> Sampler:
        """Return the sampler, with its environments open."""
        if self._run.placement.steps_on_device:
            return self.device_sampler
        self._task.report = self._report
        return make_sampler(
            self._run.config, self._task, self.acting, self.rollout, self._job.spans, pool
        )

    def evaluator(self) -> Evaluator:
        """Return the evaluator; its policy is not compiled."""
        config, code, task = self._run.config, self._run.code, self._task
        run = config.run
        if code.eval_env is not None:
            task = other_environment(config, code, code.eval_env, task)
        device = backend.device(self._run.placement.act[0])
        return Evaluator(
            self.algorithm, task, run.eval_episodes, run.seed, device,
            precision=run.precision,
        )  # fmt: skip

    def policies(self, pool: WorkerPool | None = None) -> list[Callable[[], Any]]:
        """Return functions that compile the policies of this process."""
        if self._run.placement.steps_on_device:
            return [self.device_sampler.compile]
        if pool is not None and pool.local:
            return []
        return [partial(p.compile, self._job.programs) for p in self.acting.policies]

    def publishers(self, pool: WorkerPool | None) -> list[Policy | ParamBroadcast]:
        """Return what takes the published parameters: the policies of this process, or of the
        workers."""
        if self._run.placement.steps_on_device:
            return []
        return [self.acting.remote(pool)] if pool and pool.local else [*self.acting.policies]

    def schedule(self, sampler: Sampler, learner: Learner, pool: WorkerPool | None) -> Schedule:
        """Return the schedule between a sampler and a learner."""
        job, policies = self._job, self.publishers(pool)
        flow = (sampler, policies, learner, job.spans, job.discardable, self.algorithm.advanced)
        if self._run.placement.overlapped:
            return OverlappedSchedule(*flow, lag=self._run.placement.lag)
        return SerialSchedule(*flow)

    def fused(self, learner: Learner) -> FusedSchedule:
        """Return the schedule that does everything in one program, not compiled."""
        job = self._job
        return FusedSchedule(
            self.device_sampler, [], learner, job.spans, job.discardable, self.algorithm.advanced,
            programs=job.programs,
        )  # fmt: skip
