"""From settings to the components of a run: environments, algorithm, policy, learner, schedule."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flatout.config.placement import (
    Placement,
    refuse_shards,
    refuse_unavailable,
    shares,
    with_workers,
)
from flatout.config.schema import TrainConfig
from flatout.envs.task import Task, open_task
from flatout.errors import UsageError
from flatout.hardware import backend
from flatout.hardware.inventory import Hardware, inventory, resolve_placement
from flatout.run.components import Components, Job, compile_all, learning_mesh
from flatout.spans import Spans
from flatout.types import NAMED, UserCode

if TYPE_CHECKING:
    from flatout.learner.policy import Publisher
    from flatout.schedules.base import Schedule


def assemble(
    config: TrainConfig,
    spans: Spans,
    *,
    code: UserCode = NAMED,
    discardable: Callable[[], AbstractContextManager[Any]] = nullcontext,
    announce: Callable[[str], None] = lambda note: None,
) -> Components:
    """Choose the placement, make the environments, and compile every program.

    Args:
        code: what the user passes as it is.
        discardable: see `Interrupts.discardable`.
        announce: receives sentences for the user as they become known.

    Raises:
        UsageError, FlatoutError: what cannot be done, before anything large is allocated.
    """
    backend.show_virtual_devices(config.run.virtual_devices)
    hardware = inventory()

    def job(images: bool) -> Job:
        placement, notes = _placed(config, hardware, images)
        for note in notes:
            announce(note)
        return Job(config, placement, hardware, notes, spans, discardable, announce)

    if not config.hyper.acts:
        from flatout.run.classifier import assemble_classifier

        return assemble_classifier(job(True))
    task = open_task(config.env, code.env)
    try:
        return _compile(job(task.obs_spec.is_image), task, code)
    except BaseException:
        task.close()
        raise


def _placed(config: TrainConfig, hardware: Hardware, images: bool) -> tuple[Placement, list[str]]:
    """Where everything will be, JAX started there, and sentences for the user."""
    placement, notes = resolve_placement(
        config.run.placement, hardware, images=images, soft=config.run.soft_placement,
        devices=config.run.devices,
    )  # fmt: skip
    refuse_unavailable(placement)
    refuse_shards(placement, config.run.shards)
    if config.hyper.only_serial and placement.schedule != "serial":
        raise UsageError(f"{config.algorithm} needs schedule=serial: {config.hyper.only_serial}.")
    placement = with_workers(placement, config.env.envs, hardware.cores)
    if hardware.unused_gpu_warning:
        notes.append(hardware.unused_gpu_warning)
    notes += backend.start(placement)
    starts = getattr(config.hyper, "learning_starts", 0)
    if starts >= config.run.steps:
        notes.append(
            f"nothing will be learned: learning_starts is {starts:,}, and the run has only "
            f"{config.run.steps:,} steps"
        )
    return placement, notes


def _compile(job: Job, task: Task, code: UserCode) -> Components:
    from flatout.algorithms.base import ACT, INIT, LEARN, raw_key
    from flatout.algorithms.registry import build_algorithm
    from flatout.buffers.make import build_buffer
    from flatout.buffers.rollout import final_chunks, trajectory_shapes
    from flatout.learner.learner import Learner
    from flatout.learner.memory import Expectation, learned_mb, size_mb
    from flatout.run.evaluate import Evaluator
    from flatout.samplers.make import ActingPolicies, RolloutSpec, make_sampler, start_workers
    from flatout.schedules.overlapped import OverlappedSchedule
    from flatout.schedules.serial import SerialSchedule

    config, placement, hardware, notes = job.config, job.placement, job.hardware, job.notes
    spans, announce = job.spans, job.announce
    seed, count, precision = config.run.seed, config.env.envs, config.run.precision
    mesh = learning_mesh(config, placement)
    algorithm = build_algorithm(config, *task.spaces, code, placement)
    acting = ActingPolicies(
        shares(placement, count), algorithm, task, raw_key(seed, ACT), backend.device, precision
    )  # fmt: skip
    rollout = RolloutSpec(
        algorithm.horizon, algorithm.episodes, final_chunks(algorithm.horizon, task.limit),
        algorithm.replay is not None, slots=placement.lag + 1,
    )  # fmt: skip
    shapes = trajectory_shapes(
        rollout.horizon, count, task.obs_spec, acting.policies[0].layout,
        rollout.episodes is not None, rollout.chunks, rollout.replayed,
    )  # fmt: skip
    expectation = Expectation(*learned_mb(algorithm.shapes), rollout.slots * size_mb(shapes))

    def expect(replay: tuple[float, float]) -> None:
        nonlocal expectation
        expectation = replace(expectation, replay=replay)
        expectation.check(placement, hardware)

    expect((0.0, 0.0))
    with spans.span("compile"):  # its own small programs
        buffer = build_buffer(config, task, algorithm, placement, shapes, expect)
    # A learner in a thread of its own has spans of its own.
    learners = Spans() if placement.schedule == "overlapped" else spans
    learner = Learner(
        algorithm, buffer, mesh, raw_key(seed, INIT), raw_key(seed, LEARN), learners, precision
    )  # fmt: skip
    with ExitStack() as undo:  # whatever fails on the way leaves no environment open
        pool = None
        if placement.sampler == "processes":

            def report(note: str) -> None:
                notes.append(note)
                announce(note)

            pool = start_workers(
                config, task, acting, rollout, report, code=code,
                local=placement.inference == "local",
            )  # fmt: skip
            undo.callback(pool.close)
        evaluator = None
        if config.run.eval_every:
            device = backend.device(placement.act[0])
            evaluator = Evaluator(
                algorithm, task, config.run.eval_episodes, seed, device, precision=precision
            )  # fmt: skip
            undo.callback(evaluator.close)
        jobs = [] if pool is not None and pool.local else [p.compile for p in acting.policies]
        if evaluator is not None:
            jobs.append(evaluator.policy.compile)
        expectation = replace(expectation, workspace=compile_all(learner, shapes, jobs, spans))
        announce(expectation.check(placement, hardware))
        sampler = make_sampler(config, task, acting, rollout, spans, pool)
        undo.callback(sampler.close)
        publishers: list[Publisher] = list(acting.policies)
        if pool is not None and pool.local:
            publishers = [acting.remote(pool)]
        flow = (sampler, publishers, learner, spans, job.discardable, algorithm.advanced)
        if placement.schedule == "overlapped":
            schedule: Schedule = OverlappedSchedule(*flow, lag=placement.lag)
        else:
            schedule = SerialSchedule(*flow)
        expected = expectation.by_purpose(placement)
        if pool is not None:
            task.close()  # what was made to look at is not stepped here
        undo.pop_all()
        return Components(placement, hardware, algorithm, schedule, evaluator, expected, notes)
