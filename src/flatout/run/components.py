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
from flatout.run.resolve import Announce, ResolvedRun, silent
from flatout.spans import Spans

if TYPE_CHECKING:
    from flatout.algorithms.base import Algorithm
    from flatout.learner.mesh import Mesh
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
    """A resolved run that is being assembled."""

    run: ResolvedRun
    spans: Spans = field(default_factory=Spans)
    discardable: Callable[[], AbstractContextManager[Any]] = nullcontext  # see `Interrupts`
    announce: Announce = silent
    keeps: bool = False  # the run may not begin again for another placement
    programs: Programs = field(default_factory=Programs)


def learning_mesh(config: TrainConfig, placement: Placement) -> Mesh:
    """The learning devices, with the run's shards on them."""
    from flatout.learner.mesh import Mesh

    devices = [backend.device(name) for name in placement.learn]
    return Mesh(devices, config.run.shards, placement.params_sharded)


def compile_all(job: Job, update: Callable[[], Any], others: list[Callable[[], Any]]) -> float:
    """Compile the update and all else side by side; returns the update's workspace in MiB."""
    run, programs = job.run, job.programs
    fused = run.placement.fused
    told = nullcontext()
    if (programs.together is None or not fused) and programs.first("told"):
        told = compiling(
            FUSED if fused else "the programs of acting and learning",
            shape_key(run.config, run.hardware, run.placement), programs.announce or job.announce,
        )  # fmt: skip
    with job.spans.span("compile"), told, ThreadPoolExecutor(3) as executor:
        jobs = [executor.submit(job) for job in (update, *others)]
        program, *_ = [job.result() for job in jobs]
    workspace = None if program is None else program.memory_analysis()
    return 0.0 if workspace is None else workspace.temp_size_in_bytes / 2**20
