"""The construction of a placement's sampler, its env groups and its acting policies.

`flatout.run` calls it for runs and for timed probes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flatout import tree
from flatout.algorithms.base import Algorithm, RolloutSpec, WrittenBy
from flatout.config.placement import DeviceName
from flatout.config.workers import GroupSpec
from flatout.engine.act import Policy
from flatout.engine.collect import CentralSampler
from flatout.engine.groups import ActingGroup, EnvGroup, InlineEnvGroup
from flatout.engine.rollout_buffer import RolloutBuffer, step_arrays
from flatout.engine.sampler import Sampler, lives_terminate
from flatout.engine.workers.groups import WorkerEnvGroup
from flatout.engine.workers.local import ParamBroadcast, WorkerActingSampler
from flatout.engine.workers.pool import Worker, WorkerPool
from flatout.engine.workers.protocol import (
    INFO_BYTES,
    OUTPUTS,
    PARAMS,
    SPENT,
    SPENT_COLUMNS,
    Job,
)
from flatout.engine.workers.shared_memory import Fields, SharedArrays
from flatout.envs.base import TRAINING
from flatout.envs.vector import EVERY_EPISODE, RARELY, Reseeding
from flatout.errors import UsageError
from flatout.packing import OutputLayout, PackedParams
from flatout.spans import Spans
from flatout.types import NAMED, UserCode
from flatout_explain.files.kernel import PASSES_DESCRIPTORS

if TYPE_CHECKING:
    from flatout.config.schema import TrainConfig
    from flatout.envs.task import Task


class ActingPolicies:
    """The compiled policies of a run, one for each device.

    Args:
        group_rotation: the groups that take turns; see `flatout.config.workers.assign_groups`.
        algorithm: the algorithm that acts.
        task: the environment.
        key: raw key data of the acting stream.
        device: a function from a device's name to the device.
        precision: precision of matrix products on a GPU, see `RunConfig`.
        frames: whether trajectories store each frame of a stack once, see `RolloutSpec`.

    Attributes:
        ordered: the groups in the order of their environments.
        packing: the packing of the actor's parameters.
        by_device: the policies by their devices' names.
    """

    def __init__(
        self,
        group_rotation: Sequence[Sequence[GroupSpec]],
        algorithm: Algorithm,
        task: Task,
        key: Any,
        device: Callable[[DeviceName], Any],
        precision: str = "highest",
        frames: bool = False,
    ) -> None:
        self.group_rotation = group_rotation
        self.ordered = sorted(
            (s for groups in group_rotation for s in groups), key=lambda s: s.first
        )
        self.packing = PackedParams(algorithm.actor_shapes)
        self._remote: ParamBroadcast | None = None
        self.by_device: dict[DeviceName, Policy] = {
            share.device: Policy(
                algorithm,
                task.obs_spec,
                share.batch,
                device(share.device),
                key,
                precision,
                frames=frames,
            )
            for share in {share.device: share for share in self.ordered}.values()
        }

    @property
    def policies(self) -> list[Policy]:
        """The policies, each once."""
        return list(self.by_device.values())

    def remote(self, pool: WorkerPool) -> ParamBroadcast:
        """Return the publisher of parameters to a pool's workers that act themselves."""
        self._remote = self._remote or ParamBroadcast(pool)
        return self._remote

    def calls(self) -> Iterator[tuple[int, OutputLayout]]:
        """Yield each policy call's first environment and the layout of its packed outputs."""
        for share in self.ordered:
            for at in range(0, share.count, share.batch):
                yield share.first + at, self.by_device[share.device].layout


def start_workers(
    config: TrainConfig, task: Task, acting: ActingPolicies, rollout: RolloutSpec,
    report: Callable[[str], None],
    *, code: UserCode = NAMED, local: bool = False, cluster: bool = False,
) -> WorkerPool:  # fmt: skip
    """Start the actor processes; they make their environments while this process continues.

    Args:
        acting: has the groups of environments; with `local`, one group per worker.
        report: receives a sentence about each worker that is lost.
        code: the user's objects, for example an environment factory.
        local: whether the workers act themselves.
        cluster: whether they are on the machines of a Ray cluster.

    Raises:
        UsageError: the platform cannot share memory with processes, or the environment cannot be
            made in another process.
    """
    if not PASSES_DESCRIPTORS:
        raise UsageError(
            "actor processes share memory and sockets with the run, which needs Linux or macOS; on "
            "Windows use sampler=inline, or WSL 2."
        )
    if task.single:
        raise UsageError(
            "one environment object cannot step in several processes; pass a function that makes "
            "one, or use sampler=inline."
        )
    if task.fixed_size:
        raise UsageError(
            f"{task.name} always makes {task.fixed_size} environments, and each actor process "
            "makes its share of them: let the function take the number as num_envs, or use "
            "sampler=inline."
        )
    fields = shared_fields(config, task, acting, rollout, local)
    shared_arrays = SharedArrays(fields)
    # The parent may have registered its own environment under the id.
    spec = copy.deepcopy(task.source.registered)
    sent = replace(code, eval_env=None) if local else UserCode(env=code.env)
    common = Job(
        registered=spec, config=config.env, info_masks=task.info_masks, code=sent,
        first=0, count=0, seed=config.run.seed, reseeding=reseeding(rollout),
        shared_arrays=(shared_arrays.descriptor, fields),
        local=(config, rollout, acting.ordered[0].batch) if local else None,
    )  # fmt: skip
    jobs = [
        replace(common, first=first, count=count)
        for share in acting.ordered
        for first, count in share.workers
    ]
    if cluster:
        return _remote_pool(config, task, code, jobs, shared_arrays, report)
    workers = [Worker(job, config.run.worker_timeout, shared_arrays) for job in jobs]
    pool = WorkerPool(workers, shared_arrays, report)
    pool.start()
    return pool


def _remote_pool(
    config: TrainConfig, task: Task, code: UserCode, jobs: Sequence[Job],
    shared_arrays: SharedArrays, report: Callable[[str], None],
) -> WorkerPool:  # fmt: skip
    """Start the workers on a Ray cluster; see `start_workers`."""
    from flatout.engine.workers.carried import environment_packages, runtime_environment
    from flatout.engine.workers.cluster import Cluster
    from flatout.engine.workers.remote import RemoteWorker
    from flatout.hardware.ray_cluster import connect

    run = config.run
    environment = runtime_environment(config, code, task, run.ray_working_dir)
    ray = connect(run.ray_address, len(jobs), "sampler=cluster", environment)
    cluster = Cluster(
        ray, shared_arrays, run.worker_timeout, environment_packages(task), run.same_bits, report
    )
    pool = WorkerPool([RemoteWorker(job, cluster) for job in jobs], shared_arrays, report, cluster)
    pool.start()
    return pool


def shared_fields(
    config: TrainConfig, task: Task, acting: ActingPolicies, rollout: RolloutSpec, local: bool
) -> Fields:
    """Return shape and dtype of the arrays that a run shares with its actor processes: T steps of N
    environments in each slot. With `local`, workers write whole trajectories and read the actor's
    parameters."""
    num_envs, spec, action = config.env.envs, task.obs_spec, task.action_spec
    writers: Sequence[WrittenBy] = ("envs", "sampler") if local else ("envs",)
    fields: Fields = {
        name: ((rollout.slots, *shape), dtype)
        for name, (shape, dtype) in step_arrays(rollout, num_envs, spec, writers).items()
    }
    fields |= {
        # Counts of steps and episodes, and times: a worker uses its first environment's row.
        "beats": ((num_envs, 2), "int64"),
        SPENT: ((num_envs, SPENT_COLUMNS), "float64"),
    }
    if not local:
        finals = {
            name: ((num_envs, *leaf.shape), leaf.dtype)
            for name, leaf in tree.named("finals", rollout.stored(spec)).items()
        }
        return (
            fields
            | finals
            | {
                "actions": ((num_envs, *action.choice_shape), action.choice_dtype),
                "active": ((num_envs,), "bool"),
                "flags": ((num_envs,), "uint8"),
                "returns": ((num_envs,), "float64"),
                "lengths": ((num_envs,), "int64"),
                "counters": ((num_envs, 3), "int64"),
                "infos": ((num_envs, INFO_BYTES), "uint8"),
            }
        )
    for first, layout in acting.calls():
        shape = (rollout.slots, rollout.horizon, layout.words)
        fields[f"{OUTPUTS}{first}"] = (shape, "uint32")
    for index, array in enumerate(acting.packing.shapes):
        fields[f"{PARAMS}{index}"] = (array.shape, array.dtype)
    return fields


def make_sampler(
    config: TrainConfig, task: Task, acting: ActingPolicies, rollout: RolloutSpec, spans: Spans,
    pool: WorkerPool | None = None,
) -> Sampler:  # fmt: skip
    """Make the sampler and open its environments; with a pool, wait until all workers are ready.

    Raises:
        UsageError, EnvironmentFailure: an environment cannot be made.
    """
    num_envs = config.env.envs
    firsts, layouts = zip(*acting.calls(), strict=True)

    def buffer(slot: int) -> RolloutBuffer:
        shared: dict[str, Any] = {}
        if pool is not None:
            arrays = pool.shared_arrays.arrays
            own = step_arrays(rollout, num_envs, task.obs_spec)
            shared = {name: arrays[name][slot] for name in own if name in arrays}
            if pool.local:
                shared["outputs"] = [arrays[f"{OUTPUTS}{first}"][slot] for first in firsts]
        return RolloutBuffer(
            rollout, num_envs, task.obs_spec, layouts, config.env.clip_reward, shared
        )

    buffers = [buffer(slot) for slot in range(rollout.slots)]
    if pool is not None:
        pool.wait()
        if pool.local:
            return WorkerActingSampler(pool, buffers, acting.remote(pool), task.name, spans)

    def env_group(share: GroupSpec) -> EnvGroup:
        if pool is None:
            envs = task.open(
                share.count,
                config.run.seed,
                TRAINING,
                reseeding(rollout),
                share.first,
                spares=True,
            )
            return InlineEnvGroup(envs, buffers, share.first)
        mine = {first for first, _ in share.workers}
        workers = [
            worker
            for worker in pool.workers
            if isinstance(worker, Worker) and worker.job.first in mine
        ]
        return WorkerEnvGroup(pool, workers)

    group_rotation = [
        [ActingGroup(env_group(share), acting.by_device[share.device]) for share in groups]
        for groups in acting.group_rotation
    ]
    return CentralSampler(
        group_rotation, buffers, task.name, rollout.episodes, spans,
        life_loss=lives_terminate(config),
    )  # fmt: skip


def reseeding(rollout: RolloutSpec) -> Reseeding:
    """Return when environments are seeded again. With whole episodes every episode is seeded,
    because environments then wait between episodes."""
    return EVERY_EPISODE if rollout.episodes else RARELY
