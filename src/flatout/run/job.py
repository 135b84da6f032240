"""A resolved run that is being assembled, and the compilation of its programs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flatout.config.placement import Placement
from flatout.config.schema import TrainConfig
from flatout.engine.programs import Programs
from flatout.hardware import backend
from flatout.run.forecast import compiling, shape_key
from flatout.run.resolve import Announce, ResolvedRun, silent
from flatout.spans import Spans

if TYPE_CHECKING:
    from flatout.engine.mesh import Mesh


FUSED = "the program of the whole loop"
"""The name, in notes, of the program that is compiled with ``schedule=fused``."""


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
    """Return the mesh of the learning devices with the run's shards."""
    from flatout.engine.mesh import Mesh

    devices = [backend.device(name) for name in placement.learn]
    return Mesh(devices, config.run.shards, placement.params_sharded)


def compile_all(job: Job, update: Callable[[], Any], others: list[Callable[[], Any]]) -> float:
    """Compile the update and all other programs side by side; return the update's workspace in
    MiB."""
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
