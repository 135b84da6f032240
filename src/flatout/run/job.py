"""A resolved run that is being assembled, and the compilation of its programs, with a note on how
long it took with the same cache last time."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flatout.config.placement import Placement
from flatout.config.schema import TrainConfig
from flatout.config.settings import changeable, present
from flatout.engine.programs import Programs
from flatout.hardware import backend
from flatout.hardware.compile_cache import compile_cache
from flatout.hardware.inventory import Hardware
from flatout.run.auto import key
from flatout.run.resolve import Announce, ResolvedRun, silent
from flatout.spans import Spans
from flatout_explain.files.kept_numbers import keep_number, numbers

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


def shape_key(config: TrainConfig, hardware: Hardware, placement: Placement) -> str:
    """Return the key under which a compiled program's times are saved: `auto.key` without the
    settings that change no program, and the placement."""
    found = key(config, hardware, changeable(config))
    text = f"{found} {sorted(present(config.hyper))} {placement}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@contextmanager
def compiling(what: str, under: str, announce: Callable[[str], None]) -> Iterator[None]:
    """Say what is being compiled and how long it took last time; save how long it takes now.

    The time is kept in the folder of compiled programs: with another folder, or an emptied one,
    the program is compiled for the first time.

    Args:
        what: in words.
        under: `shape_key`.
    """
    name, folder = f"{under} {what}", compile_cache()
    before = numbers(folder).get(name)
    last = "for the first time here" if before is None else f"{before:.1f} s here last time"
    announce(f"compiling {what} ({last})")
    began = time.perf_counter()
    yield
    keep_number(name, time.perf_counter() - began, folder)
