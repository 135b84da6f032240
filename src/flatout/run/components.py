"""The compiled components of one run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flatout.config.placement import DeviceName, Placement
from flatout.config.schema import TrainConfig
from flatout.hardware import backend
from flatout.hardware.inventory import Hardware
from flatout.learner.programs import Programs
from flatout.run.forecast import compiling, shape_key
from flatout.spans import Spans

if TYPE_CHECKING:
    from flatout.algorithms.base import Algorithm
    from flatout.envs.device.base import DeviceEnv
    from flatout.learner.mesh import Mesh
    from flatout.planning.predict import Prediction
    from flatout.run.auto import Planner
    from flatout.run.evaluate import Evaluator
    from flatout.schedules.base import Schedule
    from flatout.supervised.tester import Tester


FUSED = "the program of the whole loop"
"""What is compiled with ``schedule=fused``."""


@dataclass
class Components:
    """What a run is made of, compiled and ready to start."""

    placement: Placement
    hardware: Hardware
    algorithm: Algorithm
    schedule: Schedule
    evaluator: Evaluator | Tester | None
    memory_mb: dict[DeviceName, dict[str, float]]  # expected, by device and what takes it, MiB
    notes: list[str]  # sentences for the user
    planner: Planner | None = None  # chooses another placement, if nobody gave one

    def close(self) -> None:
        self.schedule.close()
        if self.evaluator is not None:
            self.evaluator.close()


@dataclass(frozen=True)
class Job:
    """A run whose placement is chosen and whose devices are started."""

    config: TrainConfig
    placement: Placement
    hardware: Hardware
    notes: list[str]  # sentences for the user, more of which may come
    spans: Spans
    discardable: Callable[[], AbstractContextManager[Any]]  # see `Interrupts.discardable`
    announce: Callable[[str], None]  # receives sentences for the user as they become known
    expected: Prediction | None = None  # by which the placement was chosen
    keeps: bool = False  # the run may not begin again for another one
    env: DeviceEnv | None = None  # one environment, where they step on the device
    programs: Programs = field(default_factory=Programs)


def learning_mesh(config: TrainConfig, placement: Placement) -> Mesh:
    """The learning devices, with the run's shards on them."""
    from flatout.learner.mesh import Mesh

    devices = [backend.device(name) for name in placement.learn]
    return Mesh(devices, config.run.shards, placement.params == "sharded")


def compile_all(job: Job, update: Callable[[], Any], others: list[Callable[[], Any]]) -> float:
    """Compile the update and all else side by side; returns the update's workspace in MiB."""
    programs, fused = job.programs, job.placement.schedule == "fused"
    told = nullcontext()
    if (programs.together is None or not fused) and programs.first("told"):
        told = compiling(
            FUSED if fused else "the programs of acting and learning",
            shape_key(job.config, job.hardware, job.placement), programs.announce or job.announce,
        )  # fmt: skip
    with job.spans.span("compile"), told, ThreadPoolExecutor(3) as executor:
        jobs = [executor.submit(job) for job in (update, *others)]
        program, *_ = [job.result() for job in jobs]
    workspace = None if program is None else program.memory_analysis()
    return 0.0 if workspace is None else workspace.temp_size_in_bytes / 2**20
