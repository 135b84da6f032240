"""The parts of a run that are timed: environments, networks, samplers and whole schedules, with
states of their own; learning and acting each by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from flatout.config.placement import DeviceName, Placement
from flatout.config.schema import TrainConfig
from flatout.config.workers import with_workers
from flatout.engine.learn import Learner
from flatout.engine.make_buffer import expected_mb
from flatout.engine.make_sampler import shared_fields
from flatout.engine.memory import Expectation
from flatout.engine.sampler import Sampler
from flatout.engine.schedule import Schedule
from flatout.engine.workers.pool import WorkerPool
from flatout.engine.workers.protocol import PARAMS, SPENT
from flatout.envs.task import open_task
from flatout.errors import FlatoutError, UsageError
from flatout.hardware import backend
from flatout.hardware.inventory import Hardware, inventory
from flatout.planning import measure
from flatout.planning.answer import Question
from flatout.planning.plan import Allowed
from flatout.planning.stages import Stages, learning, learning_of, learns
from flatout.run.device_probe import DeviceProbe, example
from flatout.run.factory import Factory
from flatout.run.job import Job
from flatout.run.opening import backends
from flatout.run.resolve import ResolvedRun
from flatout.spans import Spans
from flatout.types import UserCode


class LearnerProbe:
    """Makes a run's learners, one for each place, and policies.

    Args:
        make: makes the components of a placement.
        inline: a placement; where it learns and keeps replay is exchanged.
        factory: the components of that one.
    """

    def __init__(
        self, make: Callable[[Placement], Factory], inline: Placement, factory: Factory
    ) -> None:
        self._make, self._inline, self._factory = make, inline, factory
        self._learners: dict[tuple[str, bool], Learner] = {}

    def learn_s(self, key: str, on_device: bool, limit_s: float) -> float:
        """Return the seconds to learn from a trajectory; `key` of `Stages.learn`."""
        learner = self.learner(key, on_device)
        return measure.learn_s(learner, example(learner.trajectory), limit_s)

    def learner(self, key: str, on_device: bool = False) -> Learner:
        """Return a compiled learner. All placements that learn on these devices share it;
        trajectories of device environments have room of their own."""
        if (key, on_device) not in self._learners:
            where = replace(self._inline, **learns(key))
            factory = self._make(replace(where, sampler="device") if on_device else where)
            learner = factory.learner()
            learner.compile_update(factory.shapes)
            self._learners[key, on_device] = learner
        return self._learners[key, on_device]

    @cached_property
    def packed_params(self) -> tuple[Any, ...]:
        """Parameters to act with, once there is a learner."""
        learner = next(iter(self._learners.values()))
        return learner.publish_once(learner.start().learned)

    def act_s(self, device: DeviceName, batch: int, limit_s: float) -> float:
        """Return the seconds that it takes to choose the actions of `batch` environments."""
        policy = self._factory.policy(device, batch)
        policy.compile()
        policy.publish(self.packed_params, 0, Spans())
        return measure.act_s(policy, limit_s)


SMALL_REPLAY = 20_000
"""Rows that probes keep: enough for a draw's cost, soon allocated."""


class ProbeParts:
    """Makes the parts of a run.

    Args:
        question: what is to be planned.
        code: the user's objects and functions.
        stack: closes what is opened.
        begins: called with the name of each stage before the stage begins.
        note: receives sentences for the user.

    Attributes:
        task: the environments; `env` is the one that steps on a device, if there is one.
        on_host: whether environments may step on the host.
        envs: N, the number of environments; horizon: T, steps of each in an iteration.
        base: the rule's placement, with its workers.
        learners, device: time learning and acting, and environments on devices.
    """

    def __init__(
        self, question: Question, code: UserCode, stack: ExitStack, begins: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._config = _short(question.config)
        self._code, self._stack, self._note = code, stack, note
        self.question = question
        self.hardware: Hardware = inventory()
        # Before the environment is looked at: some libraries' open JAX's devices.
        devices = question.devices
        backend.start(replace(question.base, act=devices, learn=(*devices, *question.base.learn)))
        self.task = open_task(self._config.env, code.env, None)
        stack.callback(self.task.close)
        if self.task.single or self.task.fixed_size:
            raise UsageError("one environment object cannot be stepped by a probe, too")
        self.envs = self._config.env.envs
        self.base = with_workers(question.base, self.envs, self.hardware.cores)
        self.on_host, device = backends(self._config, self.task)
        self.env = self.task.on_device() if device else None
        # Nothing else can be chosen without the host: then compiling takes what it takes.
        self.device = DeviceProbe(
            self._make, stack, question.budget_s if self.on_host else math.inf, begins
        )
        inline = self.inline()
        self._factory = self._make(inline)
        self.horizon = self._factory.rollout.horizon
        self.learners = LearnerProbe(self._make, inline, self._factory)
        self._sizes: dict[str, dict[str, float]] = {}

    def allowed(self, lag: bool) -> Allowed:
        """Return the placements that the search may consider for this run."""
        return Allowed(
            processes=not self.task.source.atari or self.envs > 1,
            overlap=not self._config.hyper.only_serial, lag=lag,
            fits=lambda placement: bool(self.memory(placement)),
        )  # fmt: skip

    def memory(self, placement: Placement) -> dict[str, float]:
        """Return the expected MiB by device; empty if a placement does not fit."""
        text = str(placement)
        if text not in self._sizes:
            self._sizes[text] = {}
            with suppress(FlatoutError):
                expected = self._expected(placement)
                expected.check(placement, self.hardware)
                sizes = expected.by_device(placement)
                self._sizes[text] = {str(name): round(size, 1) for name, size in sizes.items()}
        return self._sizes[text]

    def _expected(self, placement: Placement) -> Expectation:
        """Return the expected memory of the run itself, whose replay is larger than a probe's."""
        algorithm, config = self._factory.algorithm, self.question.config
        if algorithm.replay is None:
            return self._factory.expectation
        replay = replace(algorithm.replay, buffer_size=config.hyper.buffer_size)
        sizes = expected_mb(config, self.task.obs_spec, replay, placement, self._factory.shapes)
        return replace(self._factory.expectation, replay=sizes)

    def inline(self) -> Placement:
        """Return the rule's placement with environments in this process."""
        return replace(
            self.base, sampler="inline", workers=None, groups=None, inference="central",
            schedule="serial", lag=0,
        )  # fmt: skip

    def groups(self, count: int) -> int:
        """Return the acting groups of `count` actor processes."""
        placement = Placement(sampler="processes", workers=(count, self.envs // count))
        return with_workers(placement, self.envs, count).groups or 1

    def traffic(self) -> tuple[float, float]:
        """Return what would travel to and from workers on other machines: the bytes of a trajectory
        for each step of an environment, and those of the parameters that act."""
        factory = self._factory
        shared = shared_fields(
            self._config, self.task, factory.acting, factory.rollout, local=True
        )  # fmt: skip
        sizes = {n: math.prod(s) * np.dtype(d).itemsize for n, (s, d) in shared.items()}
        params = sum(size for name, size in sizes.items() if name.startswith(PARAMS))
        kept = sum(sizes[name] for name in ("beats", SPENT))
        rows = factory.rollout.slots * factory.rollout.horizon * self.envs
        return (sum(sizes.values()) - params - kept) / rows, float(params)

    def learning_keys(self) -> list[str]:
        """Return where learning can happen and where replay can be: keys of `Stages.learn`."""
        learn = self.base.learn
        places = [",".join(map(str, learn))] if len(learn) > 1 else [
            str(device) for device in self.question.devices
        ]  # fmt: skip
        replay = self._factory.algorithm.replay
        replays = ("cpu", "device") if replay is not None and not replay.hindsight else ("cpu",)
        return [learning(place, replay) for place in places for replay in replays]

    def sampler(
        self, placement: Placement, stages: Stages, limit_s: float, stack: ExitStack
    ) -> tuple[Sampler, int]:
        """Return a started sampler and its T, which is shorter if whole trajectories would take too
        long."""
        factory = self._make(placement)
        turn_s = (stages.env_s + stages.resets.mean_s) * stages.envs + stages.call
        most = max(int(limit_s / 3 / max(turn_s, 1e-9)), 4)
        if factory.rollout.episodes is None and most < factory.rollout.horizon:
            factory.rollout = replace(factory.rollout, horizon=most)
        sampler, pool = _opened(factory, stack)
        for policy in factory.publishers(pool):
            policy.publish(self.learners.packed_params, 0, Spans())
        sampler.start()
        return sampler, factory.rollout.horizon

    def started(self, placement: Placement, stack: ExitStack) -> tuple[Schedule, Iterator[int]]:
        """Return a started schedule that has made its first iterations, and an iterator over the
        steps of further ones."""
        if placement.fused:
            return self.device.started(placement)
        factory = self._make(placement)
        sampler, pool = _opened(factory, stack)
        learner = self.learners.learner(learning_of(placement), placement.steps_on_device)
        schedule = factory.schedule(sampler, learner, pool)
        stack.callback(schedule.close)
        schedule.start()
        iterations = schedule.advance(1 << 40)
        while not next(iterations).updates:  # until replay can be learned from
            pass
        return schedule, (metrics.steps for metrics in iterations)

    def _make(self, placement: Placement) -> Factory:
        env = self.env if placement.steps_on_device else None
        run = ResolvedRun(self._config, placement, self.hardware, self.task, env, self._code)
        return Factory(Job(run, announce=self._note))


def _opened(factory: Factory, stack: ExitStack) -> tuple[Sampler, WorkerPool | None]:
    """Open a sampler, with its processes if it has any, and compile its policies."""
    pool = factory.pool()
    if pool is not None:
        stack.callback(pool.close)
    for compile_ in factory.policies(pool):
        compile_()
    sampler = factory.sampler(pool)
    stack.callback(sampler.close)
    return sampler, pool


def _short(config: TrainConfig) -> TrainConfig:
    """Return settings with which learning begins soon, and a small replay."""
    hyper = config.hyper
    changes: dict[str, Any] = {}
    names = {spec.name for spec in fields(hyper)}
    if "learning_starts" in names:
        batch = getattr(hyper, "batch_size", 1)
        changes["learning_starts"] = min(hyper.learning_starts, max(batch, 64))
    if "buffer_size" in names:
        changes["buffer_size"] = min(hyper.buffer_size, max(SMALL_REPLAY, config.env.envs * 1000))
    return replace(config, hyper=replace(hyper, **changes))
