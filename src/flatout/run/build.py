"""From a resolved run to its components: algorithm, policies, learner, sampler, schedule."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from flatout.config.placement import DeviceName, Placement, moved
from flatout.config.schema import TrainConfig
from flatout.engine.programs import Programs
from flatout.hardware.inventory import Hardware
from flatout.planning.predict import Prediction
from flatout.run.auto import plannable
from flatout.run.job import Job, compile_all, learning_mesh
from flatout.run.planner import Planner
from flatout.run.resolve import Announce, ResolvedRun, resolve_run, silent
from flatout.spans import Spans

if TYPE_CHECKING:
    from flatout.algorithms.base import Algorithm
    from flatout.engine.memory import Expectation
    from flatout.engine.schedule import Schedule
    from flatout.run.evaluate import Evaluator
    from flatout.run.factory import Factory
    from flatout.supervised.parts import Parts
    from flatout.supervised.tester import Tester


@dataclass
class Components:
    """The parts of a run, compiled and ready to start."""

    placement: Placement
    hardware: Hardware
    algorithm: Algorithm
    schedule: Schedule
    evaluator: Evaluator | Tester | None
    memory_mb: dict[DeviceName, dict[str, float]]  # expected, by device and what takes it, MiB
    notes: list[str]  # sentences for the user
    planner: Planner | None = None  # chooses another placement, if nobody gave one
    could_have_spares: bool = False  # see `Task`
    pictures: bool = True  # whether the environment could have pictures: a vector has none

    def close(self) -> None:
        self.schedule.close()
        if self.evaluator is not None:
            self.evaluator.close()


def assemble(
    run: ResolvedRun,
    spans: Spans,
    *,
    expected: Prediction | None = None,
    keeps: bool = False,
    discardable: Callable[[], AbstractContextManager[Any]] = nullcontext,
    announce: Announce = silent,
    programs: Programs | None = None,
    made: int = 0,
) -> Components:
    """Make the parts of a run, and compile every program. If it fails, the run is closed.

    Args:
        expected: the prediction by which the run was given another placement while it trained.
        keeps: the run may not begin again, see `Planner`.
        discardable: see `Interrupts.discardable`.
        announce: receives sentences for the user as they become known.
        programs: that other runs of this shape have compiled.
        made: steps that the run has made before.

    Raises:
        UsageError, FlatoutError: what cannot be done.
    """
    run = replace(run, expected=run.expected or expected)
    job = Job(run, spans, discardable, announce, keeps, programs or Programs())
    try:
        return _compile(job) if run.task is not None else _compile_classifier(job, made)
    except BaseException:
        run.close()
        raise


def expected_memory(
    config: TrainConfig, announce: Announce
) -> tuple[Placement, Expectation, Hardware]:
    """Return the placement of a run and the memory that its parts would take, as far as it is known
    before compilation. Nothing large is allocated.

    Args:
        announce: receives sentences for the user.

    Raises:
        UsageError, FlatoutError: as of `resolve_run`.
    """
    with closing(resolve_run(config, announce=announce, checks=False)) as run:
        return run.placement, _uncompiled(run).expectation, run.hardware


def algorithm_of(config: TrainConfig) -> Algorithm:
    """Return the algorithm of a run and start JAX on the run's devices. Nothing is compiled.

    Raises:
        UsageError, FlatoutError: as of `resolve_run`.
    """
    with closing(resolve_run(config, checks=False)) as run:
        return _uncompiled(run).algorithm


def foreseen(config: TrainConfig) -> tuple[tuple[Placement, ...], Expectation]:
    """Return the placements of a population's members, one for each device that members share, and
    the memory that one member would take, as far as it is known before compilation.

    Raises:
        UsageError, FlatoutError: as of `resolve_run`.
    """
    from flatout.run.factory import Factory

    with closing(resolve_run(config, checks=False, members=True)) as run:
        factory = Factory(Job(run))
        factory.learner()  # refuses what does not fit
        others = (moved(run.placement, device) for device in run.shared[1:])
        return (run.placement, *others), factory.expectation


def _uncompiled(run: ResolvedRun) -> Factory | Parts:
    """Return the factory of a run's parts, or the parts of a classification run. Nothing is
    compiled."""
    from flatout.run.factory import Factory
    from flatout.supervised.parts import make_parts

    if run.task is None:
        return make_parts(run.config, run.placement, Spans(), run.code)
    return Factory(Job(run))


def _compile(job: Job) -> Components:
    from flatout.run.factory import Factory

    run, factory = job.run, Factory(job)
    learner = factory.learner()
    with ExitStack() as undo:  # whatever fails on the way leaves no environment open
        pool, evaluator = factory.pool(), None
        if pool is not None:
            undo.callback(pool.close)
        schedule, update = None, partial(learner.compile_update, factory.shapes)
        if run.placement.fused:
            schedule = factory.fused(learner)
            update = schedule.compile
        compiles = [] if schedule is not None else factory.policies(pool)
        if run.config.run.eval_every:
            evaluator = factory.evaluator()
            undo.callback(evaluator.close)
            compiles.append(partial(evaluator.policy.compile, job.programs))
        workspace = compile_all(job, update, compiles)
        expectation = replace(factory.expectation, workspace=workspace)
        job.announce(expectation.check(run.placement, run.hardware))
        if schedule is None:
            sampler = factory.sampler(pool)
            undo.callback(sampler.close)
            schedule = factory.schedule(sampler, learner, pool)
        if not run.placement.inline:
            run.close()  # what was made to look at is not stepped here
        undo.pop_all()
        return Components(
            run.placement, run.hardware, factory.algorithm, schedule, evaluator,
            expectation.by_purpose(run.placement), run.notes, _planner(job),
            run.task is not None and run.task.could_have_spares,
            run.task is None or run.task.vector is None,
        )  # fmt: skip


def _compile_classifier(job: Job, made: int) -> Components:
    from flatout.engine.schedule import SerialSchedule
    from flatout.supervised.parts import make_parts
    from flatout.supervised.tester import Tester

    run = job.run
    config, placement = run.config, run.placement
    parts = make_parts(config, placement, job.spans, run.code, made)
    parts.expectation.check(placement, run.hardware)
    mesh, dataset = learning_mesh(config, placement), parts.dataset
    # Without dropout the update draws nothing: another program, of the same shapes.
    programs = job.programs.get(("classify", config.hyper.dropout > 0), Programs)
    learner = parts.learner(config, placement, mesh, job.spans, programs)
    tester = Tester(parts.algorithm, dataset, mesh.first, config.run.precision)

    def update() -> Any:
        if parts.first is not None:
            learner.compile_update(parts.first)
        return learner.compile_update(parts.shapes)

    workspace = compile_all(job, update, [partial(tester.policy.compile, programs)])
    expectation = replace(parts.expectation, workspace=workspace)
    job.announce(expectation.check(placement, run.hardware))
    job.announce(
        f"{dataset.name}: {len(dataset.train_y):,} examples to learn from, "
        f"{len(dataset.test_y):,} to test with"
    )
    size, batch = len(dataset.train_y), config.hyper.batch_size
    if batch > size:
        run.notes.append(
            f"each batch of {batch:,} has the {size:,} examples {batch / size:.1f} times: a "
            f"batch_size of at most {size:,} does the same work once"
        )
        job.announce(run.notes[-1])
    schedule = SerialSchedule(parts.sampler, [], learner, job.spans, job.discardable)
    expected = expectation.by_purpose(placement)
    return Components(
        placement, run.hardware, parts.algorithm, schedule, tester, expected, run.notes
    )


def _planner(job: Job) -> Planner | None:
    """Return the planner of a run whose placement was neither given nor planned before; otherwise
    None."""
    run = job.run
    if run.task is None or run.task.single or run.task.fixed_size or job.programs.several:
        return None
    if run.expected is None and not plannable(run.config):
        return None
    code = replace(run.code, eval_env=None)  # what is measured evaluates nothing
    return Planner(
        run.config, run.placement, run.hardware, code, job.announce, job.spans, run.expected,
        job.keeps,
    )  # fmt: skip
