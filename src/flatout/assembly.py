"""From settings to the parts of a run: environments, algorithm, policy, learner, schedule."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flatout import backend
from flatout.config import TrainConfig, sync_every
from flatout.envs.task import Task, open_task
from flatout.errors import UsageError
from flatout.hardware import Hardware, inventory, resolve_placement
from flatout.placement import (
    DeviceName,
    Placement,
    refuse_shards,
    refuse_unavailable,
    shares,
    with_workers,
)
from flatout.spans import Spans

if TYPE_CHECKING:
    from flatout.algorithms.base import Algorithm
    from flatout.algorithms.shards import Shards
    from flatout.evaluate import Evaluator
    from flatout.networks import Network
    from flatout.params import Publisher
    from flatout.schedules.base import Schedule
    from flatout.supervised import Tester


def horizon(config: TrainConfig, limit: int | None) -> int:
    """T, steps per environment and trajectory (the most, where it is of whole episodes).

    Raises:
        UsageError: whole episodes are wanted of an environment without a time limit, or their
            padded rollout does not divide into minibatches.
    """
    hyper = config.hyper
    if hyper.rollout_episodes is None or (config.algorithm == "genetic" and hyper.n_steps):
        return hyper.n_steps
    if limit is None:
        raise UsageError(
            f"--rollout-episodes needs an environment with a time limit, which {config.env.env} "
            "has not; pass --env-kwargs max_episode_steps=N."
            + (" Or say with --n-steps how many." if config.algorithm == "genetic" else "")
        )
    steps = hyper.rollout_episodes * limit
    if config.algorithm == "genetic":
        return steps
    rows = steps * config.env.envs
    if hyper.batch_size > rows or rows % hyper.batch_size:
        raise UsageError(
            f"a padded rollout of {hyper.rollout_episodes} episodes x {limit} steps x "
            f"{config.env.envs} envs = {rows} rows does not divide into minibatches of batch_size "
            f"{hyper.batch_size}; batch_size {rows} makes one minibatch of it."
        )
    return steps


def build_algorithm(
    config: TrainConfig, task: Task, network: Network | None, placement: Placement | None = None
) -> Algorithm:
    """The algorithm's pure functions for this task; the placement only where they will learn."""
    from flatout.algorithms import a2c, dqn, genetic, ppo, sac, td3

    common: dict[str, Any] = {
        "num_envs": config.env.envs, "total_steps": config.run.steps, "network": network,
        "shards": shards_of(config, placement),
    }  # fmt: skip
    settings = (config.hyper, config.network, task.obs_spec, task.action_spec)
    if config.run.micro_batch is not None:
        common["micro_batch"] = config.run.micro_batch
    padded: dict[str, Any] = {"ppo": ppo.ppo, "genetic": genetic.genetic}
    if config.algorithm in padded:
        steps = horizon(config, task.limit)
        return padded[config.algorithm](*settings, horizon=steps, **common)
    build: dict[str, Any] = {
        "a2c": a2c.a2c,
        "dqn": dqn.dqn,
        "ddpg": td3.td3,
        "td3": td3.td3,
        "sac": sac.sac,
    }
    return build[config.algorithm](*settings, **common)


def shards_of(config: TrainConfig, placement: Placement | None) -> Shards:
    """The parts that the settings ask for."""
    from flatout.algorithms.shards import Shards

    run = config.run
    every = sync_every(run.sync) if run.shards > 1 else 1
    divided = placement is not None and placement.params == "sharded"
    return Shards(run.shards, every, run.reduce == "ordered", mapped=not divided)


@dataclass
class Parts:
    """A run's parts, compiled and ready to start.

    Attributes:
        placement: where they live.
        hardware: the machine.
        algorithm: the pure functions.
        schedule: the data flow.
        evaluator: plays evaluation episodes, or None.
        memory_mb: expected memory by device and what takes it, MiB.
        notes: sentences for the user.
    """

    placement: Placement
    hardware: Hardware
    algorithm: Algorithm
    schedule: Schedule
    evaluator: Evaluator | Tester | None
    memory_mb: dict[DeviceName, dict[str, float]]
    notes: list[str]

    def close(self) -> None:
        """Close all environments."""
        self.schedule.close()
        if self.evaluator is not None:
            self.evaluator.close()


def assemble(
    config: TrainConfig,
    spans: Spans,
    *,
    source: Any = None,
    network: Network | None = None,
    discardable: Callable[[], AbstractContextManager[Any]] = nullcontext,
    announce: Callable[[str], None] = lambda note: None,
) -> Parts:
    """Choose the placement, make the environments, and compile every program.

    Args:
        config: the settings.
        spans: where the time goes.
        source: an environment object or factory instead of ``config.env.env``.
        network: a custom torso.
        discardable: see `Interrupts.discardable`.
        announce: receives sentences for the user as they become known.

    Raises:
        UsageError, FlatoutError: what cannot be done, before anything large is allocated.
    """
    backend.show_virtual_devices(config.run.virtual_devices)
    hardware = inventory()
    if config.algorithm == "classify":
        from flatout.supervised import assemble_classifier

        placement, notes = _placed(config, hardware, True, announce)
        return assemble_classifier(
            config, placement, hardware, notes, spans, discardable, announce
        )  # fmt: skip
    task = open_task(config.env, source)
    try:
        placement, notes = _placed(config, hardware, task.obs_spec.is_image, announce)
        return _compile(
            config, task, placement, hardware, notes, spans, source, network, discardable, announce
        )
    except BaseException:
        task.close()
        raise


def _placed(
    config: TrainConfig, hardware: Hardware, images: bool, announce: Callable[[str], None]
) -> tuple[Placement, list[str]]:
    """Where everything will be, JAX started there, and sentences that the user was told.

    Raises:
        UsageError: what cannot be done.
    """
    placement, notes = resolve_placement(
        config.run.placement, hardware, images=images, soft=config.run.soft_placement,
        devices=config.run.devices,
    )  # fmt: skip
    refuse_unavailable(placement)
    refuse_shards(placement, config.run.shards)
    if config.algorithm == "genetic" and placement.schedule != "serial":
        raise UsageError(
            "genetic needs schedule=serial: it selects among the members that played, which a "
            "schedule that learns meanwhile has already replaced."
        )
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
    for note in notes:
        announce(note)
    return placement, notes


def _compile(
    config: TrainConfig,
    task: Task,
    placement: Placement,
    hardware: Hardware,
    notes: list[str],
    spans: Spans,
    source: Any,
    network: Network | None,
    discardable: Callable[[], AbstractContextManager[Any]],
    announce: Callable[[str], None],
) -> Parts:
    from flatout.algorithms.base import ACT, INIT, LEARN, raw_key
    from flatout.buffers.make import build_buffer
    from flatout.buffers.rollout import final_chunks, trajectory_shapes
    from flatout.evaluate import Evaluator
    from flatout.learner import Learner
    from flatout.memory import Expectation, learned_mb, size_mb
    from flatout.mesh import Mesh
    from flatout.samplers.make import Acting, Needs, hire, make_sampler
    from flatout.schedules.overlapped import OverlappedSchedule
    from flatout.schedules.serial import SerialSchedule

    seed, count, precision = config.run.seed, config.env.envs, config.run.precision
    learning = [backend.device(name) for name in placement.learn]
    mesh = Mesh(learning, config.run.shards, placement.params == "sharded")
    algorithm = build_algorithm(config, task, network, placement)
    acting = Acting(
        shares(placement, count), algorithm, task, raw_key(seed, ACT), backend.device, precision
    )  # fmt: skip
    needs = Needs(
        algorithm.horizon, algorithm.episodes, final_chunks(algorithm.horizon, task.limit),
        algorithm.replay is not None, slots=placement.lag + 1,
    )  # fmt: skip
    shapes = trajectory_shapes(
        needs.horizon, count, task.obs_spec, acting.policies[0].layout,
        needs.episodes is not None, needs.chunks, needs.replayed,
    )  # fmt: skip
    expectation = Expectation(*learned_mb(algorithm.shapes), needs.slots * size_mb(shapes))

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
        crew = None
        if placement.sampler == "processes":

            def report(note: str) -> None:
                notes.append(note)
                announce(note)

            crew = hire(
                config, task, acting, needs, report, source=source, network=network,
                local=placement.inference == "local",
            )  # fmt: skip
            undo.callback(crew.close)
        evaluator = None
        if config.run.eval_every:
            device = backend.device(placement.act[0])
            evaluator = Evaluator(
                algorithm, task, config.run.eval_episodes, seed, device, precision=precision
            )  # fmt: skip
            undo.callback(evaluator.close)
        compiled = [] if crew is not None and crew.local else acting.policies  # else in workers
        with spans.span("compile"), ThreadPoolExecutor(3) as pool:
            jobs = [pool.submit(learner.compile_update, shapes)]
            jobs += [pool.submit(policy.compile) for policy in compiled]
            if evaluator is not None:
                jobs.append(pool.submit(evaluator.policy.compile))
            program, *_ = [job.result() for job in jobs]
        workspace = program.memory_analysis()
        temporary = 0.0 if workspace is None else workspace.temp_size_in_bytes / 2**20
        expectation = replace(expectation, workspace=temporary)
        announce(expectation.check(placement, hardware))
        sampler = make_sampler(config, task, acting, needs, spans, crew)
        undo.callback(sampler.close)
        publishers: list[Publisher] = list(acting.policies)
        if crew is not None and crew.local:
            publishers = [acting.remote(crew)]
        flow = (sampler, publishers, learner, spans, discardable, algorithm.advanced)
        if placement.schedule == "overlapped":
            schedule: Schedule = OverlappedSchedule(*flow, lag=placement.lag)
        else:
            schedule = SerialSchedule(*flow)
        expected = expectation.parts(placement)
        if crew is not None:
            task.close()  # what was made to look at is not stepped here
        undo.pop_all()
        return Parts(placement, hardware, algorithm, schedule, evaluator, expected, notes)
