"""From settings to the components of a run: environments, algorithm, policy, learner, schedule."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from flatout.config.placement import (
    Placement,
    cards_in,
    moved,
    on_cards,
    on_device,
    parse,
    refuse_shards,
    refuse_unavailable,
)
from flatout.config.schema import TrainConfig
from flatout.config.workers import with_workers
from flatout.envs.check import making, refuse, undisturbed
from flatout.envs.device.make import has_twin
from flatout.envs.task import Task
from flatout.errors import UsageError
from flatout.hardware import backend
from flatout.hardware.inventory import Hardware, inventory, resolve_placement
from flatout.learner.programs import Programs
from flatout.planning.predict import Prediction
from flatout.run.auto import Planner, plannable, recall, with_placement
from flatout.run.components import Components, Job, compile_all, learning_mesh
from flatout.run.opening import backends, member_devices, open_environment
from flatout.spans import Spans
from flatout.types import NAMED, UserCode

if TYPE_CHECKING:
    from flatout.algorithms.base import Algorithm
    from flatout.envs.device.base import DeviceEnv
    from flatout.learner.memory import Expectation
    from flatout.run.factory import Factory
    from flatout.supervised.parts import Parts


def assemble(
    config: TrainConfig,
    spans: Spans,
    *,
    code: UserCode = NAMED,
    expected: Prediction | None = None,
    keeps: bool = False,
    discardable: Callable[[], AbstractContextManager[Any]] = nullcontext,
    announce: Callable[[str], None] = lambda note: None,
    programs: Programs | None = None,
    checked: bool = False,
) -> Components:
    """Choose the placement, make the environments, and compile every program.

    Args:
        code: what the user passes as it is.
        expected: the prediction by which the placement was chosen, if it was.
        keeps: the run may not begin again, see `Planner`.
        discardable: see `Interrupts.discardable`.
        announce: receives sentences for the user as they become known.
        programs: that other runs of this shape have compiled.
        checked: whether the environment's observations have been checked.

    Raises:
        UsageError, FlatoutError: what cannot be done, before anything large is allocated.
    """
    backend.show_virtual_devices(config.run.virtual_devices)
    hardware, planned = inventory(), config
    # A population has chosen how its members share a device before it makes them.
    chosen = programs is not None and (
        programs.together is not None
        or (programs.several and config.env.env_backend not in (None, "host"))
    )
    if not chosen:
        planned, found = _recalled(config, hardware, code, announce)
        expected = found or expected

    def job(images: bool, env: DeviceEnv | None = None) -> Job:
        placement, notes = _placed(planned, hardware, images, env)
        for note in notes:
            announce(note)
        return Job(
            planned,
            placement,
            hardware,
            notes,
            spans,
            discardable,
            announce,
            expected,
            keeps,
            env,
            programs or Programs(),
        )

    if not config.hyper.acts:
        return _compile_classifier(job(True))
    with nullcontext() if checked else undisturbed(), ExitStack() as undo:
        with nullcontext() if checked else making(config.env.env, config.run.worker_timeout):
            task = open_environment(planned, code, hardware=hardware)
        undo.callback(task.close)
        made = job(task.obs_spec.is_image, _device_env(planned, task))
        made.notes.extend(task.notes)
        for note in () if checked else task.notes:  # the check has said them
            announce(note)
        if made.env is None and not checked:
            refuse(task, config.run.seed, config.run.worker_timeout)
        undo.pop_all()
    try:
        return _compile(made, task, code)
    except BaseException:
        task.close()
        raise


def _recalled(
    config: TrainConfig, hardware: Hardware, code: UserCode, announce: Callable[[str], None]
) -> tuple[TrainConfig, Prediction | None]:
    """The settings with the placement that was measured here before, and its prediction."""
    if not plannable(config):
        return config, None
    found, note = recall(config, hardware, code)
    if note:
        announce(note)
    if found is None:
        return config, None
    # It was measured on a GPU that may not be the freest one now.
    text = str(found.chosen.placement)
    cards = [gpu.index for gpu in hardware.freest()]
    text = on_cards(text, dict(zip(cards_in(text), cards, strict=False)))
    return with_placement(config, parse(text)), found.chosen


def expected_memory(
    config: TrainConfig, announce: Callable[[str], None]
) -> tuple[Placement, Expectation, Hardware]:
    """Where the components of a run would be, and the memory that they would take, as far as that
    is known before anything is compiled; nothing large is allocated.

    Args:
        announce: receives sentences for the user.

    Raises:
        UsageError, FlatoutError: as of `assemble`, except for memory that is not there.
    """
    job, made = _uncompiled(config, announce)
    return job.placement, made.expectation, job.hardware


def algorithm_of(config: TrainConfig) -> Algorithm:
    """The algorithm of a run, with JAX started where the run will be; nothing is compiled.

    Raises:
        UsageError, FlatoutError: as of `assemble`.
    """
    return _uncompiled(config, lambda note: None)[1].algorithm


def _uncompiled(
    config: TrainConfig, announce: Callable[[str], None]
) -> tuple[Job, Factory | Parts]:
    """A run's placement, with JAX started there, and what makes its components."""
    from flatout.run.factory import Factory
    from flatout.supervised.parts import make_parts

    backend.show_virtual_devices(config.run.virtual_devices)
    hardware = inventory()
    planned, _ = _recalled(config, hardware, NAMED, announce)

    def job(images: bool, env: DeviceEnv | None = None) -> Job:
        placement, notes = _placed(planned, hardware, images, env)
        for note in notes:
            announce(note)
        return Job(planned, placement, hardware, notes, Spans(), nullcontext, announce, env=env)

    if not config.hyper.acts:
        made = job(True)
        return made, make_parts(made.config, made.placement, made.spans)
    with closing(open_environment(planned, hardware=hardware)) as task:
        made = job(task.obs_spec.is_image, _device_env(planned, task))
        return made, Factory(made, task)


def foreseen(config: TrainConfig) -> tuple[tuple[Placement, ...], Expectation]:
    """Where the components of a population's members would be, one placement for each device that
    members share, and the memory that one would take, as far as that is known before anything is
    compiled.

    Raises:
        UsageError, FlatoutError: as of `assemble`.
    """
    from flatout.run.factory import Factory

    backend.show_virtual_devices(config.run.virtual_devices)
    hardware = inventory()
    task = open_environment(config, members=True, hardware=hardware)
    with closing(task):
        env = _device_env(config, task)
        resolved, _ = _resolved(config, hardware, task.obs_spec.is_image, env)
        devices = member_devices(config, resolved, hardware)
        backend.start(replace(resolved, learn=devices or resolved.learn))  # all of them at once
        first = moved(resolved, devices[0]) if devices else resolved
        placement, notes = _checked(config, hardware, first)
        job = Job(
            config, placement, hardware, notes, Spans(), nullcontext, lambda _: None, env=env
        )  # fmt: skip
        factory = Factory(job, task)
        factory.learner()
        others = (moved(placement, device) for device in devices[1:])
        return (placement, *others), factory.expectation


def _device_env(config: TrainConfig, task: Task) -> DeviceEnv | None:
    """The environment as a device steps it, if the settings ask for that.

    Raises:
        UsageError: it has no twin, or the settings contradict each other.
    """
    placement = config.run.placement.strip()
    named = "sampler=device" in placement
    if not backends(config, task)[1]:
        if named:
            raise UsageError("--env-backend host does not go with sampler=device.")
        return None
    if not named and placement not in ("auto", "cpu", "gpu"):
        raise UsageError(
            f"--env-backend {config.env.env_backend} needs sampler=device in --placement "
            f"'{placement}'."
        )
    return task.on_device()


def _placed(
    config: TrainConfig, hardware: Hardware, images: bool, env: DeviceEnv | None
) -> tuple[Placement, list[str]]:
    """Where everything will be, JAX started there, and sentences for the user."""
    resolved, notes = _resolved(config, hardware, images, env)
    placement, more = _checked(config, hardware, resolved)
    return placement, notes + more


def _resolved(
    config: TrainConfig, hardware: Hardware, images: bool, env: DeviceEnv | None
) -> tuple[Placement, list[str]]:
    """What the settings mean on this machine, and sentences for the user."""
    text = config.run.placement
    if env is not None and text.strip() == "auto" and hardware.usable_gpus:
        text = "gpu"
    placement, notes = resolve_placement(
        text, hardware, images=images, soft=config.run.soft_placement, devices=config.run.devices
    )
    if env is not None and placement.sampler != "device":
        placement, name = on_device(placement), config.env.env
        automatic = config.env.env_backend == "auto" and has_twin(name, config.env.env_kwargs)
        twin = f" ({name} has a proven twin)" if automatic else ""
        notes.append(f"environments on the device{twin}: {placement}")
    return placement, notes


def _checked(
    config: TrainConfig, hardware: Hardware, placement: Placement
) -> tuple[Placement, list[str]]:
    """The placement with its workers, JAX started there, and sentences for the user."""
    refuse_unavailable(placement)
    refuse_shards(placement, config.run.shards)
    notes: list[str] = []
    if config.hyper.only_serial and placement.schedule == "overlapped":
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
        schedule, update = None, partial(learner.compile_update, factory.shapes)
        if job.placement.schedule == "fused":
            schedule = factory.fused(learner)
            update = schedule.compile
        compiles = [] if schedule is not None else factory.policies(pool)
        if job.config.run.eval_every:
            evaluator = factory.evaluator()
            undo.callback(evaluator.close)
            compiles.append(partial(evaluator.policy.compile, job.programs))
        workspace = compile_all(job, update, compiles)
        expectation = replace(factory.expectation, workspace=workspace)
        job.announce(expectation.check(job.placement, job.hardware))
        if schedule is None:
            sampler = factory.sampler(pool)
            undo.callback(sampler.close)
            schedule = factory.schedule(sampler, learner, pool)
        if job.placement.sampler != "inline":
            task.close()  # what was made to look at is not stepped here
        undo.pop_all()
        return Components(
            job.placement, job.hardware, factory.algorithm, schedule, evaluator,
            expectation.by_purpose(job.placement), job.notes, _planner(job, task, code),
        )  # fmt: skip


def _compile_classifier(job: Job) -> Components:
    from flatout.schedules.serial import SerialSchedule
    from flatout.supervised.parts import make_parts
    from flatout.supervised.tester import Tester

    config, placement = job.config, job.placement
    parts = make_parts(config, placement, job.spans)
    parts.expectation.check(placement, job.hardware)
    mesh, dataset = learning_mesh(config, placement), parts.dataset
    # Without dropout the update draws nothing: another program, of the same shapes.
    programs = job.programs.get(("classify", config.hyper.dropout > 0), Programs)
    learner = parts.learner(config, placement, mesh, job.spans, programs)
    tester = Tester(parts.algorithm, dataset, mesh.first, config.run.precision)
    update = partial(learner.compile_update, parts.shapes)
    workspace = compile_all(job, update, [partial(tester.policy.compile, programs)])
    expectation = replace(parts.expectation, workspace=workspace)
    job.announce(expectation.check(placement, job.hardware))
    job.announce(
        f"{dataset.name}: {len(dataset.train_labels):,} images to learn from, "
        f"{len(dataset.test_labels):,} to test with"
    )
    schedule = SerialSchedule(parts.sampler, [], learner, job.spans, job.discardable)
    expected = expectation.by_purpose(placement)
    return Components(
        placement, job.hardware, parts.algorithm, schedule, tester, expected, job.notes
    )


def _planner(job: Job, task: Task, code: UserCode) -> Planner | None:
    """What plans a run whose placement nobody gave and nobody planned before."""
    if task.single or job.programs.several:
        return None
    if job.expected is None and not plannable(job.config):
        return None
    return Planner(
        job.config,
        job.placement,
        job.hardware,
        code,
        job.announce,
        job.spans,
        job.expected,
        job.keeps,
    )
