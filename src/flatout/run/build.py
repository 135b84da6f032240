"""From settings to the components of a run: environments, algorithm, policy, learner, schedule."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import Any

from flatout.config.placement import (
    Placement,
    refuse_shards,
    refuse_unavailable,
    with_workers,
)
from flatout.config.schema import TrainConfig
from flatout.envs.task import Task
from flatout.errors import UsageError
from flatout.hardware import backend
from flatout.hardware.inventory import Hardware, inventory, resolve_placement
from flatout.planning.predict import Prediction
from flatout.run.auto import Planner, plannable, recall, with_placement
from flatout.run.components import Components, Job, compile_all
from flatout.run.opening import open_environment
from flatout.spans import Spans
from flatout.types import NAMED, UserCode


def assemble(
    config: TrainConfig,
    spans: Spans,
    *,
    code: UserCode = NAMED,
    expected: Prediction | None = None,
    keeps: bool = False,
    discardable: Callable[[], AbstractContextManager[Any]] = nullcontext,
    announce: Callable[[str], None] = lambda note: None,
) -> Components:
    """Choose the placement, make the environments, and compile every program.

    Args:
        code: what the user passes as it is.
        expected: the prediction by which the placement was chosen, if it was.
        keeps: the run may not begin again, see `Planner`.
        discardable: see `Interrupts.discardable`.
        announce: receives sentences for the user as they become known.

    Raises:
        UsageError, FlatoutError: what cannot be done, before anything large is allocated.
    """
    backend.show_virtual_devices(config.run.virtual_devices)
    hardware = inventory()

    planned = config
    if plannable(config):
        found, note = recall(config, hardware, code)
        if note:
            announce(note)
        if found is not None:
            expected = found.chosen
            planned = with_placement(config, expected.placement)

    def job(images: bool) -> Job:
        placement, notes = _placed(planned, hardware, images)
        for note in notes:
            announce(note)
        return Job(
            planned, placement, hardware, notes, spans, discardable, announce, expected, keeps
        )

    if not config.hyper.acts:
        from flatout.run.classifier import assemble_classifier

        return assemble_classifier(job(True))
    task = open_environment(planned, code)
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
    from flatout.run.factory import Factory

    factory = Factory(job, task, code)
    learner = factory.learner()
    with ExitStack() as undo:  # whatever fails on the way leaves no environment open
        pool, evaluator = factory.pool(), None
        if pool is not None:
            undo.callback(pool.close)
        compiles = factory.policies(pool)
        if job.config.run.eval_every:
            evaluator = factory.evaluator()
            undo.callback(evaluator.close)
            compiles.append(evaluator.policy.compile)
        workspace = compile_all(learner, factory.shapes, compiles, job.spans)
        expectation = replace(factory.expectation, workspace=workspace)
        job.announce(expectation.check(job.placement, job.hardware))
        sampler = factory.sampler(pool)
        undo.callback(sampler.close)
        schedule = factory.schedule(sampler, learner, pool)
        if pool is not None:
            task.close()  # what was made to look at is not stepped here
        undo.pop_all()
        return Components(
            job.placement, job.hardware, factory.algorithm, schedule, evaluator,
            expectation.by_purpose(job.placement), job.notes, _planner(job, task, code),
        )  # fmt: skip


def _planner(job: Job, task: Task, code: UserCode) -> Planner | None:
    """What plans a run whose placement nobody gave and nobody planned before."""
    if task.single or (job.expected is None and not plannable(job.config)):
        return None
    return Planner(
        job.config, job.placement, job.hardware, code, job.announce, job.expected, job.keeps
    )
