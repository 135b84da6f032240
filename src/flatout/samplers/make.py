"""From a placement to a sampler: who steps which environments, and who acts for them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flatout.buffers.rollout import RolloutBuffer
from flatout.envs.host import TRAINING
from flatout.errors import UsageError
from flatout.params import Policy
from flatout.placement import DeviceName, Share
from flatout.samplers.central import CentralSampler, Group
from flatout.samplers.crew import Crew, Worker
from flatout.samplers.lanes import HostLanes, Lanes
from flatout.samplers.processes import WorkerLanes, arena_fields
from flatout.samplers.shared_memory import Arena
from flatout.samplers.worker import Job
from flatout.spans import Spans

if TYPE_CHECKING:
    from flatout.algorithms.base import Algorithm
    from flatout.config import TrainConfig
    from flatout.envs.task import Task


class Acting:
    """The compiled policies of a run: one for each device and size of group.

    Args:
        rounds: the groups (`shares`).
        algorithm: acts.
        task: the environment.
        key: raw key data of the acting stream.
        device: from a device's name to the device.
    """

    def __init__(
        self,
        rounds: Sequence[Sequence[Share]],
        algorithm: Algorithm,
        task: Task,
        key: Any,
        device: Callable[[DeviceName], Any],
    ) -> None:
        self.rounds = rounds
        self._policies: dict[tuple[DeviceName, int], Policy] = {}
        for share in (share for groups in rounds for share in groups):
            where = (share.device, share.count)
            if where not in self._policies:
                self._policies[where] = Policy(
                    algorithm, task.obs_spec, share.count, device(share.device), key
                )

    @property
    def policies(self) -> list[Policy]:
        """Each once."""
        return list(self._policies.values())

    def policy(self, share: Share) -> Policy:
        """The policy of a group."""
        return self._policies[share.device, share.count]


@dataclass(frozen=True)
class Needs:
    """What a run's algorithm and data flow ask of its sampler.

    Attributes:
        horizon: T.
        episodes: whole episodes per environment and trajectory, or None.
        chunks: room for final observations, in units of N.
        replayed: trajectories say which steps ended an episode.
        slots: trajectories in use at the same time.
    """

    horizon: int
    episodes: int | None
    chunks: int
    replayed: bool
    slots: int = 1


RESEED_AFTER = 1000
"""Steps of an Atari game between seeded starts, each of which takes as long as some 250 steps."""


def hire(
    config: TrainConfig, task: Task, rounds: Sequence[Sequence[Share]], needs: Needs, source: Any,
    report: Callable[[str], None],
) -> Crew:  # fmt: skip
    """Start the actor processes; they make their environments while this process goes on.

    Args:
        config: the run's settings.
        task: the environment.
        rounds: the groups (`shares`).
        needs: of the run.
        source: a function that makes one environment, instead of the configured id.
        report: receives sentences about workers that are lost.

    Raises:
        UsageError: the environment cannot be made in another process.
    """
    if task.single:
        raise UsageError(
            "one environment object cannot step in several processes; pass a function that makes "
            "one, or use sampler=inline."
        )
    num_envs = config.env.envs
    fields = arena_fields(needs.slots, needs.horizon, num_envs, task.obs_spec, task.action_spec)
    arena = Arena(fields)
    common = Job(
        registered=registered(config.env.env) if source is None else None, config=config.env,
        source=source, first=0, count=0, seed=config.run.seed, reseed_after=reseed_after(needs),
        arena=(arena.descriptor, fields),
    )  # fmt: skip
    jobs = [
        replace(common, first=first, count=count)
        for share in sorted((s for groups in rounds for s in groups), key=lambda s: s.first)
        for first, count in share.workers
    ]
    crew = Crew([Worker(job, config.run.worker_timeout) for job in jobs], arena, report)
    crew.start()
    return crew


def make_sampler(
    config: TrainConfig, task: Task, acting: Acting, needs: Needs, spans: Spans, crew: Crew | None
) -> CentralSampler:
    """The sampler, its environments open (with a crew: once all workers are ready).

    Raises:
        UsageError, EnvironmentFailure: the environments cannot be made.
    """
    num_envs = config.env.envs
    groups = [share for groups in acting.rounds for share in groups]
    layouts = [acting.policy(s).layout for s in sorted(groups, key=lambda share: share.first)]

    def buffer(slot: int) -> RolloutBuffer:
        shared = () if crew is None else (crew.arena["obs"][slot], crew.arena["rewards"][slot])
        return RolloutBuffer(
            needs.horizon, num_envs, task.obs_spec, layouts, needs.episodes is not None,
            needs.chunks, needs.replayed, config.env.clip_reward, *shared,
        )  # fmt: skip

    buffers = [buffer(slot) for slot in range(needs.slots)]
    if crew is not None:
        crew.wait()

    def lanes(share: Share) -> Lanes:
        if crew is None:
            envs = task.open(
                share.count, config.run.seed, TRAINING, reseed_after(needs), share.first
            )
            return HostLanes(envs, buffers, share.first)
        mine = {first for first, _ in share.workers}
        workers = [worker for worker in crew.workers if worker.job.first in mine]
        return WorkerLanes(crew, workers, task.name)

    rounds = [[Group(lanes(s), acting.policy(s)) for s in groups] for groups in acting.rounds]
    return CentralSampler(
        rounds, buffers, needs.horizon, needs.episodes, spans,
        life_loss=config.env.terminal_on_life_loss,
    )  # fmt: skip


def reseed_after(needs: Needs) -> int:
    """Environments that wait for the others between episodes need every one seeded."""
    return 0 if needs.episodes else RESEED_AFTER


def registered(name: str) -> Any:
    """What the parent's program has registered under an id, which a worker would not know."""
    import gymnasium

    return copy.deepcopy(gymnasium.registry.get(name))
