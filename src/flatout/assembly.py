"""From settings to the parts of a run: environments, algorithm, policy, learner, schedule."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from flatout import backend
from flatout.config import TrainConfig
from flatout.envs.make import Factory, close_quietly, episode_limit, factory, specs
from flatout.errors import UsageError
from flatout.hardware import Hardware, inventory, resolve_placement
from flatout.placement import Placement, refuse_unavailable
from flatout.spans import Spans
from flatout.types import ActionSpec, ObservationSpec

if TYPE_CHECKING:
    from flatout.algorithms.base import Algorithm
    from flatout.evaluate import Evaluator
    from flatout.networks import Network
    from flatout.schedules.base import Schedule

INIT, LEARN, ACT = 0, 1, 2
"""The run's independent random streams."""


@dataclass
class Task:
    """The environments' side of a run: how to make them, and what they look like.

    Attributes:
        make: makes one.
        name: for messages.
        obs_spec, action_spec: its spaces.
        limit: its time limit in steps, if any.
        first: the one that was made to look at its spaces, until `take` hands it out.
        single: a user's own object, of which there cannot be two.
    """

    make: Factory
    name: str
    obs_spec: ObservationSpec
    action_spec: ActionSpec
    limit: int | None
    first: Any
    single: bool = False

    def take(self, count: int) -> list[Any]:
        """`count` environments; the one that was made to look at its spaces is the first."""
        made = [self.first] if self.first is not None else []
        self.first = None
        try:
            while len(made) < count:
                made.append(self.make())
        except BaseException:
            for env in made:
                close_quietly(env)
            raise
        return made


def open_task(config: TrainConfig, source: Any = None) -> Task:
    """Make the first environment and read its spaces.

    Raises:
        UsageError: an unknown environment or an unsupported space.
    """
    make = factory(config.env, source)
    env = make()
    try:
        obs_spec, action_spec = specs(env, config.env.env)
    except BaseException:
        close_quietly(env)
        raise
    single = isinstance(source, gym.Env)
    return Task(make, config.env.env, obs_spec, action_spec, episode_limit(env), env, single)


def horizon(config: TrainConfig, limit: int | None) -> int:
    """T, steps per environment and trajectory.

    Raises:
        UsageError: whole episodes are wanted of an environment without a time limit, or their
            padded rollout does not divide into minibatches.
    """
    hyper = config.hyper
    if hyper.rollout_episodes is None:
        return hyper.n_steps
    if limit is None:
        raise UsageError(
            f"--rollout-episodes needs an environment with a time limit, which {config.env.env} "
            "has not; pass --env-kwargs max_episode_steps=N."
        )
    steps = hyper.rollout_episodes * limit
    rows = steps * config.env.envs
    if hyper.batch_size > rows or rows % hyper.batch_size:
        raise UsageError(
            f"a padded rollout of {hyper.rollout_episodes} episodes x {limit} steps x "
            f"{config.env.envs} envs = {rows} rows does not divide into minibatches of batch_size "
            f"{hyper.batch_size}; batch_size {rows} makes one minibatch of it."
        )
    return steps


def build_algorithm(config: TrainConfig, task: Task, network: Network | None) -> Algorithm:
    """The algorithm's pure functions for this task."""
    from flatout.algorithms.ppo import ppo

    return ppo(
        config.hyper,
        config.network,
        task.obs_spec,
        task.action_spec,
        num_envs=config.env.envs,
        horizon=horizon(config, task.limit),
        total_steps=config.run.steps,
        network=network,
    )


@dataclass
class Parts:
    """A run's parts, compiled and ready to start.

    Attributes:
        placement: where they live.
        hardware: the machine.
        algorithm: the pure functions.
        schedule: the data flow.
        evaluator: plays evaluation episodes, or None.
        memory_mb: expected memory by device, MiB.
        notes: sentences for the user.
    """

    placement: Placement
    hardware: Hardware
    algorithm: Algorithm
    schedule: Schedule
    evaluator: Evaluator | None
    memory_mb: dict[str, float]
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
    hardware = inventory()
    task = open_task(config, source)
    try:
        placement, notes = resolve_placement(
            config.run.placement, hardware,
            images=task.obs_spec.is_image, soft=config.run.soft_placement,
        )  # fmt: skip
        refuse_unavailable(placement)
        if hardware.unused_gpu_warning:
            notes.append(hardware.unused_gpu_warning)
        notes += backend.start(placement)
        for note in notes:
            announce(note)
        return _compile(
            config, task, placement, hardware, notes, spans, network, discardable, announce
        )
    except BaseException:
        if task.first is not None:
            close_quietly(task.first)
        raise


def _compile(
    config: TrainConfig,
    task: Task,
    placement: Placement,
    hardware: Hardware,
    notes: list[str],
    spans: Spans,
    network: Network | None,
    discardable: Callable[[], AbstractContextManager[Any]],
    announce: Callable[[str], None],
) -> Parts:
    from flatout.algorithms.base import raw_key
    from flatout.buffers.rollout import final_chunks, trajectory_shapes
    from flatout.envs.host import HostEnvs
    from flatout.evaluate import Evaluator
    from flatout.learner import Learner
    from flatout.memory import Expectation, size_mb
    from flatout.params import Policy
    from flatout.samplers.inline import InlineSampler
    from flatout.schedules.serial import SerialSchedule

    seed, count = config.run.seed, config.env.envs
    acting = backend.device(placement.act[0])
    learning = backend.device(placement.learn[0])
    algorithm = build_algorithm(config, task, network)
    masked = algorithm.episodes is not None
    policy = Policy(algorithm, task.obs_spec, count, acting, raw_key(seed, ACT))
    learner = Learner(algorithm, learning, raw_key(seed, INIT), raw_key(seed, LEARN), spans)
    chunks = final_chunks(algorithm.horizon, task.limit)
    shapes = trajectory_shapes(
        algorithm.horizon, count, task.obs_spec, policy.layout, masked, chunks
    )
    expectation = Expectation(size_mb(learner.shapes), size_mb(shapes))
    expectation.check(placement, hardware)  # before a long compilation
    with ExitStack() as undo:  # whatever fails on the way leaves no environment open
        evaluator = None
        if config.run.eval_every:
            evaluator = Evaluator(
                algorithm, task.make, task.name, task.obs_spec, task.action_spec,
                config.run.eval_episodes, seed, acting,
            )  # fmt: skip
            undo.callback(evaluator.close)
        with spans.span("compile"), ThreadPoolExecutor(3) as pool:
            jobs = [
                pool.submit(learner.compile_update, shapes),
                pool.submit(policy.compile),
            ]
            if evaluator is not None:
                jobs.append(pool.submit(evaluator.policy.compile))
            program, *_ = [job.result() for job in jobs]
        workspace = program.memory_analysis()
        expectation = Expectation(
            expectation.state,
            expectation.trajectory,
            0.0 if workspace is None else workspace.temp_size_in_bytes / 2**20,
        )
        announce(expectation.check(placement, hardware))
        envs = HostEnvs(task.take(count), task.name, task.obs_spec, task.action_spec, seed)
        undo.callback(envs.close)
        sampler = InlineSampler(
            envs, policy, task.obs_spec, algorithm.horizon, algorithm.episodes, chunks, spans
        )
        schedule = SerialSchedule(sampler, policy, learner, spans, discardable)
        expected = {str(d): round(mb, 1) for d, mb in expectation.by_device(placement).items()}
        undo.pop_all()
        return Parts(placement, hardware, algorithm, schedule, evaluator, expected, notes)
