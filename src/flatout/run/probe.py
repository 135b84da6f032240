"""A run's parts, made one after another and timed, then whole placements in turns.

The measured stages predict every placement (`flatout.planning.predict`); the best few are then
run for a short time. All of it happens in environments and states of its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import fields, replace
from typing import Any

import jax
import numpy as np

from flatout.buffers.make import expected_mb
from flatout.config.placement import Placement, on_device, parse
from flatout.config.schema import TrainConfig
from flatout.config.workers import with_workers
from flatout.envs.task import open_task
from flatout.errors import FlatoutError, UsageError, one_line
from flatout.hardware import backend
from flatout.hardware.inventory import Hardware, inventory
from flatout.learner.memory import Expectation
from flatout.planning import measure
from flatout.planning.answer import LEFT_OUT, Question
from flatout.planning.measure import Rate
from flatout.planning.plan import Allowed, worker_counts
from flatout.planning.predict import Prediction, fitted, loaded
from flatout.planning.stages import Stages, learning, learning_of
from flatout.run.components import Job
from flatout.run.device_probe import DeviceProbe
from flatout.run.factory import Factory
from flatout.run.learner_probe import LearnerProbe
from flatout.run.opening import backends
from flatout.samplers.base import Sampler
from flatout.samplers.make import make_sampler, start_workers
from flatout.schedules.base import Schedule
from flatout.schedules.fused import FusedSchedule
from flatout.spans import Spans, Work
from flatout.types import UserCode

ROUNDS = 4
"""Turns that they take."""

SMALL_REPLAY = 20_000
"""Rows that probes keep: enough for a draw's cost, soon allocated."""

TIMED = 0.4
"""Least share of the time for that which they run, however long they took to start."""

WHOLE = 0.25
"""Of the time for one measurement: an iteration that takes longer is not run whole."""


class Probe:
    """Makes a run's parts and times them.

    Args:
        question: what is to be planned.
        code: what the user passes as it is.
        stack: closes what is opened.
    """

    def __init__(self, question: Question, code: UserCode, stack: ExitStack) -> None:
        self._config = _short(question.config)
        self._code, self._stack = code, stack
        self._question = question
        self.notes: list[str] = []
        self._hardware: Hardware = inventory()
        # Before the environment is looked at: some libraries' open JAX's devices.
        backend.start(replace(question.base, act=question.devices, learn=question.devices))
        self._task = open_task(self._config.env, code.env)
        stack.callback(self._task.close)
        if self._task.single:
            raise UsageError("one environment object cannot be stepped by a probe, too")
        self._base = with_workers(question.base, self._config.env.envs, self._hardware.cores)
        self._on_host, device = backends(self._config, self._task)
        self._env = self._task.on_device() if device else None
        # Nothing else can be chosen without the host: then compiling takes what it takes.
        self._device = DeviceProbe(
            self._make, stack, question.budget_s if self._on_host else math.inf
        )
        inline = self._inline()
        self._factory = self._make(inline)
        self._learners = LearnerProbe(self._make, inline, self._factory, self._task.obs_spec)

    def allowed(self, lag: bool) -> Allowed:
        """What the search may do for this run."""
        return Allowed(
            processes=not self._task.vectorised or self._config.env.envs > 1,
            overlap=not self._config.hyper.only_serial, lag=lag, fits=self._fits,
        )  # fmt: skip

    def memory(self, placement: Placement) -> dict[str, float]:
        """Expected MiB by device."""
        expected = self._expected(placement).by_device(placement)
        return {str(device): round(size, 1) for device, size in expected.items()}

    def _expected(self, placement: Placement) -> Expectation:
        """Of the run itself, whose replay is larger than a probe's."""
        algorithm, config = self._factory.algorithm, self._question.config
        if algorithm.replay is None:
            return self._factory.expectation
        replay = replace(algorithm.replay, buffer_size=config.hyper.buffer_size)
        sizes = expected_mb(config, self._task.obs_spec, replay, placement, self._factory.shapes)
        return replace(self._factory.expectation, replay=sizes)

    def _fits(self, placement: Placement) -> bool:
        with suppress(FlatoutError):
            self._expected(placement).check(placement, self._hardware)
            return True
        return False

    # --- Stages -------------------------------------------------------------------------------

    def measure(self, budget_s: float) -> tuple[Stages, set[str]]:
        """Time every part; also which ways to collect were run."""
        config, cores = self._config, self._hardware.cores
        envs, horizon = config.env.envs, self._factory.rollout.horizon
        each = budget_s / (8 if self._env is None or not self._on_host else 12)
        if not self._on_host:
            learn = self._learn(each)
            stages = Stages(envs, horizon, cores, env=(0.0,), act={}, learn=learn)
            return self._on_device(stages, each), {"device"}
        cost = measure.env_cost(self._task, envs, config.run.seed, each)
        learn = self._learn(each)
        stages = Stages(
            envs=envs, horizon=horizon, cores=cores, env=cost.env, computing=cost.computing,
            lanes=cost.lanes, call=cost.call, act={"cpu": ((envs, 0.0),)}, learn=learn,
        )  # fmt: skip
        counts = worker_counts(stages) if self.allowed(False).processes else []
        sizes = sorted({envs, *(envs // self._groups(n) for n in counts[-2:])})
        act = {str(d): tuple((b, self._learners.act_s(d, b, each / 4)) for b in sizes)
               for d in self._question.devices}  # fmt: skip
        stages = replace(stages, act=act)
        known = {"inline"}
        inline = self._inline()
        stages, whole = self._calibrated(stages, inline, each)
        if counts:
            for inference in ("local", "central"):
                placement = with_workers(
                    replace(inline, sampler="processes", workers=(counts[-1], envs // counts[-1]),
                            inference=inference),
                    envs, cores,
                )  # fmt: skip
                try:
                    stages = self._collected(stages, placement, each)
                    known.add(inference)
                except (UsageError, FlatoutError) as error:
                    self.notes.append(f"inference={inference} could not be measured: {error}")
        stages = replace(stages, iteration=whole)
        if self._env is None:
            return stages, known
        return self._on_device(stages, each), {*known, "device"}

    def _on_device(self, stages: Stages, each: float) -> Stages:
        """Stages with those of environments on each device; what fails there is left out.

        Raises:
            FlatoutError: all of it, and nothing steps on the host.
        """
        whys: list[str] = []
        for place in dict.fromkeys(key.split(" ")[0] for key in self._learning_keys()):
            try:
                fused = on_device(replace(self._base, learn=parse(f"act={place}").learn))
                stages = self._device.measured(stages, fused, each)
            except (FlatoutError, jax.errors.JaxRuntimeError) as error:
                whys.append(f"environments on {place} {LEFT_OUT}: {one_line(error)}")
        if whys and not self._on_host and not stages.rollout:
            raise FlatoutError("; ".join(whys))
        self.notes += whys
        return stages

    def _inline(self) -> Placement:
        return replace(
            self._base, sampler="inline", workers=None, groups=None, inference="central",
            schedule="serial", lag=0,
        )  # fmt: skip

    def _groups(self, count: int) -> int:
        placement = Placement(sampler="processes", workers=(count, self._config.env.envs // count))
        return with_workers(placement, self._config.env.envs, count).groups or 1

    def _learning_keys(self) -> list[str]:
        """Where learning may happen, and where replay may be kept."""
        learn = self._base.learn
        places = [",".join(map(str, learn))] if len(learn) > 1 else [
            str(device) for device in self._question.devices
        ]  # fmt: skip
        replays = ("cpu", "device") if self._factory.algorithm.replay else ("cpu",)
        return [learning(place, replay) for place in places for replay in replays]

    def _learn(self, limit_s: float) -> dict[str, float]:
        """Seconds of learning by where it happens."""
        there = not self._on_host
        return {k: self._learners.learn_s(k, there, limit_s) for k in self._learning_keys()}

    # --- Together -----------------------------------------------------------------------------

    def _calibrated(
        self, stages: Stages, placement: Placement, limit_s: float
    ) -> tuple[Stages, float]:
        """Stages whose sum is what collecting inline takes; and what an iteration costs beside."""
        with ExitStack() as stack:
            sampler, horizon = self._sampler(placement, stages, limit_s, stack)
            step_s = measure.collect_s(sampler, limit_s, lambda: None)
        stages = fitted(stages, placement, step_s, horizon)
        key = learning_of(placement)
        expected = step_s * stages.steps + stages.learn[key]
        if expected > limit_s * WHOLE:
            return stages, 0.0
        rate = Rate()
        with ExitStack() as stack:
            rate.time(self._started(placement, stack)[1], limit_s)
        return stages, max(float(np.median(rate.seconds)) - expected, 0.0)

    def _collected(self, stages: Stages, placement: Placement, limit_s: float) -> Stages:
        """Stages in which collecting in processes takes as long as it does."""
        done: list[dict[str, Work]] = []
        with ExitStack() as stack:
            sampler, horizon = self._sampler(placement, stages, limit_s, stack)
            step_s = measure.collect_s(sampler, limit_s, lambda: done.append(sampler.work()))
            done.append(sampler.work())
        if placement.inference == "local":
            count, each = placement.workers or (1, 1)
            batch = stages.envs // (placement.groups or count)
            before, after = map(_told, done)
            env, act, turns = (b - a for a, b in zip(before, after, strict=True))
            rows = max(turns * horizon, 1.0)
            stages = loaded(stages, count, env / (rows * each), act * batch / (rows * each), batch)
        return fitted(stages, placement, step_s, horizon)

    def _sampler(
        self, placement: Placement, stages: Stages, limit_s: float, stack: ExitStack
    ) -> tuple[Sampler, int]:
        """A started sampler, and its T: shorter where whole trajectories would take too long."""
        factory = self._make(placement)
        rollout, acting = factory.rollout, factory.acting
        turn_s = stages.env_s * stages.envs + stages.call
        most = max(int(limit_s / 3 / max(turn_s, 1e-9)), 4)
        if rollout.episodes is None and most < rollout.horizon:
            rollout = replace(rollout, horizon=most)
        pool = None
        if placement.sampler == "processes":
            pool = start_workers(
                self._config, self._task, acting, rollout, self.notes.append, code=self._code,
                local=placement.inference == "local",
            )  # fmt: skip
            stack.callback(pool.close)
        for compile_ in factory.policies(pool):
            compile_()
        sampler = make_sampler(self._config, self._task, acting, rollout, Spans(), pool)
        stack.callback(sampler.close)
        bundle = self._learners.bundle
        for policy in [acting.remote(pool)] if pool and pool.local else acting.policies:
            policy.publish(bundle, 0, Spans())
        sampler.start()
        return sampler, rollout.horizon

    def _started(self, placement: Placement, stack: ExitStack) -> tuple[Schedule, Iterator[int]]:
        """A started schedule and its iterations' steps; the first have been made."""
        if placement.schedule == "fused":
            return self._device.started(placement)
        factory = self._make(placement)
        pool = factory.pool()
        if pool is not None:
            stack.callback(pool.close)
        for compile_ in factory.policies(pool):
            compile_()
        sampler = factory.sampler(pool)
        stack.callback(sampler.close)
        learner = self._learners.learner(learning_of(placement), placement.sampler == "device")
        schedule = factory.schedule(sampler, learner, pool)
        stack.callback(schedule.close)
        schedule.start()
        iterations = schedule.advance(1 << 40)
        while not next(iterations).updates:  # until replay can be learned from
            pass
        return schedule, (metrics.steps for metrics in iterations)

    def verify(
        self, finalists: Sequence[Prediction], stages: Stages, budget_s: float
    ) -> dict[str, Rate]:
        """Run the finalists in turns; those whose iterations are too long are left out.

        The best come first, and no more are begun than there is time for.
        """
        if not finalists or budget_s <= 0.0:
            return {}
        began = time.perf_counter()
        with ExitStack() as stack:
            running: dict[str, tuple[Schedule, Iterator[int], Rate]] = {}
            for prediction in finalists:
                left = budget_s - (time.perf_counter() - began)
                too_long = stages.steps / prediction.rate > left * WHOLE
                if too_long or (running and left < 0.4 * budget_s):
                    continue
                text = str(prediction.placement)
                try:
                    running[text] = *self._started(prediction.placement, stack), Rate()
                except (FlatoutError, jax.errors.JaxRuntimeError) as error:
                    self.notes.append(f"{text} could not be run: {one_line(error)}")
            if not running or self._device.late:  # what compiles meanwhile would be measured, too
                return {}
            turns, now = len(running) * ROUNDS, time.perf_counter()
            until = max(began + budget_s, now + TIMED * budget_s)
            each = max(until - time.perf_counter(), 0.0) / turns
            for turn, (schedule, iterations, rate) in enumerate([*running.values()] * ROUNDS):
                if turn < len(running) or time.perf_counter() < until:
                    schedule.publish_newest()  # they share learners, which reuse its memory
                    rate.time(iterations, each)
                    if isinstance(schedule, FusedSchedule):
                        schedule.idle()
        return {text: rate for text, (_, _, rate) in running.items()}

    def _make(self, placement: Placement) -> Factory:
        job = Job(
            self._config, placement, self._hardware, [], Spans(), nullcontext, lambda note: None,
            env=self._env if placement.sampler == "device" else None,
        )  # fmt: skip
        return Factory(job, self._task, self._code)


def _short(config: TrainConfig) -> TrainConfig:
    """Settings with which learning begins soon, and a small replay."""
    hyper = config.hyper
    changes: dict[str, Any] = {}
    names = {spec.name for spec in fields(hyper)}
    if "learning_starts" in names:
        batch = getattr(hyper, "batch_size", 1)
        changes["learning_starts"] = min(hyper.learning_starts, max(batch, 64))
    if "buffer_size" in names:
        changes["buffer_size"] = min(hyper.buffer_size, max(SMALL_REPLAY, config.env.envs * 1000))
    return replace(config, hyper=replace(hyper, **changes))


def _told(done: dict[str, Work]) -> tuple[float, float, float]:
    """Seconds of stepping and of acting, and trajectories, of all processes together."""
    works = done.values()
    names = ("env", "act")
    env, act = (sum(work.seconds[name] for work in works) for name in names)
    return env, act, float(sum(work.turns for work in works))
