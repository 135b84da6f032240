"""A process that trains one job after another, which share its imports and compiled programs.

It ends when its channel to the sweep closes.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from flatout.child import Parent
from flatout.config.settings import resolve
from flatout.errors import (
    FlatoutError,
    Interrupt,
    NoRoomError,
    UsageError,
    full_memory,
    one_line,
    writing,
)
from flatout.run.interrupts import Interrupts
from flatout.run.progress import Display, Progress
from flatout.run.summary import peak_rss_mb
from flatout.sweeps.plan import Job, Trial, read_job, shape
from flatout_explain.files import nofollow
from flatout_explain.files.kernel import close_in_children
from flatout_explain.hardware.cores import usable_cpus

RESERVED_MB, PER_CORE_MB = 1024, 32
"""Memory that libraries and threads reserve and do not use; caps are raised by it."""

TELL_S = 0.5
"""Seconds between two reports of a trial's progress."""

FREE, ROOM, USAGE = "free", "room", "usage"
"""Kinds of failures: any other one, too little memory, and settings that can never work."""

Tell = Callable[..., None]


class Telling(Display):
    """A display that reports the progress of one trial to the sweep."""

    shows = True

    def __init__(self, name: str, tell: Tell) -> None:
        self._name, self._tell = name, tell
        self._told, self._busy = 0.0, ""

    def update(self, progress: Progress, row: dict[str, float], wall_s: float) -> None:
        now = time.monotonic()
        if now - self._told > TELL_S:
            self._told = now
            self._tell(
                trial=self._name, steps=progress.steps, updates=progress.updates,
                mean=progress.return_mean_last, busy=self._busy,
                peak_mb=peak_rss_mb(),
            )  # fmt: skip

    def load(self, steps_per_s: float, machine: str) -> None:
        self._busy = machine.rpartition("now ")[2].partition(",")[0] if "now " in machine else ""


def main() -> None:
    """Run the process; its argument is the descriptor of the sweep's lock."""
    parent, jobs = Parent(), queue.SimpleQueue[Job]()
    close_in_children(int(sys.argv[1]))
    tell = parent.send

    def listen() -> None:
        with suppress(EOFError, OSError):
            while True:
                jobs.put(read_job(parent.receive()))
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    programs, home = dict[str, Any](), os.open(".", os.O_RDONLY)  # it may be deleted
    with Interrupts() as interrupts:
        tell(ready=os.getpid())
        while interrupts.signum is None:
            try:
                with interrupts.discardable():
                    job = jobs.get()
                os.chdir(home)  # an environment of the job before may have left it
                _do(job, tell, interrupts, programs)
            except Interrupt:
                break
            tell(done=job.name)
    os._exit(0)  # threads of environments do not keep it


def _do(job: Job, tell: Tell, interrupts: Interrupts, programs: dict[str, Any]) -> None:
    """Train a job's trials."""
    _limit(job.cap_mb)
    folder, found = Path(job.folder).absolute(), list(job.trials)
    try:
        with nofollow.confined(folder.parent):  # the sweep's folder
            if job.population:
                from flatout.populations.members import held
                from flatout.storage.run_folder import POPULATION, mark_own

                if folder.is_dir():  # rows of members that have trained elsewhere may be in it
                    with writing(folder):
                        mark_own(folder, 2)
                with held(folder, resume := (folder / POPULATION).exists()):
                    _population(found, folder, job.strategy, tell, interrupts, resume)
            else:
                _lone(found[0], folder, tell, interrupts, programs)
    except FlatoutError as error:
        _failed(found, str(error), kind_of(error), tell)
    except Exception as error:  # full memory or a defect; other trials go on
        text = full_memory(error) or f"{type(error).__name__}: {one_line(error)}"
        _failed(found, text, kind_of(error), tell)


def _limit(cap_mb: float | None) -> None:
    """Limit the memory of this process; Windows has no such limit."""
    try:
        import resource
    except ImportError:
        return
    hard = most = resource.getrlimit(resource.RLIMIT_DATA)[1]  # a limit that the user has set stays
    if cap_mb is not None:
        wanted = int(cap_mb + RESERVED_MB + PER_CORE_MB * len(usable_cpus())) << 20
        most = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _failed(found: list[Trial], text: str, kind: str, tell: Tell) -> None:
    for trial in found:
        tell(trial=trial.name, error=text, kind=kind)


def kind_of(error: Exception) -> str:
    """Return the kind of a failure: too little memory (also as the cause), settings, or other."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, NoRoomError | MemoryError) or "RESOURCE_EXHAUSTED" in str(cause):
            return ROOM
        cause = cause.__cause__
    return USAGE if isinstance(error, UsageError) else FREE


def _lone(
    trial: Trial, path: Path, tell: Tell, interrupts: Interrupts, programs: dict[str, Any]
) -> None:
    """Train one trial, or resume it."""
    from flatout.engine.programs import Programs
    from flatout.run.trainer import Trainer
    from flatout.storage.checkpoint import checkpoints
    from flatout.storage.run_folder import RunFolder, load_config
    from flatout.storage.trust import Consent

    resume, values = (path / "config.json").exists(), dict(trial.settings)
    with closing(RunFolder(path, resume)) as folder:
        if resume:  # a resumed run keeps its placement, so that its results stay equal
            before = load_config(path, Consent(values)).flat()
            values |= {name: before[name] for name in ("placement", "devices", "env_backend")}
        config = resolve(trial.algorithm, values, {"run_dir": str(path)})
        if (key := shape(config)) not in programs:  # memory of another shape is given back
            programs.clear()
            programs[key] = Programs(several=True)
        if resume and not checkpoints(folder.checkpoints):  # killed early: start again
            folder.empty()
        try:
            trainer = Trainer(
                config, folder=folder, resume=resume, display=Telling(trial.name, tell),
                interrupts=interrupts, programs=programs[key], started=time.perf_counter_ns(),
            )  # fmt: skip
            summary = trainer.run()
        except FlatoutError as error:
            folder.keep_traceback(error)
            raise
    tell(trial=trial.name, ended=summary.get("ended", "signal"), steps=summary.get("steps", 0))


def _population(
    found: list[Trial], folder: Path, strategy: str, tell: Tell, interrupts: Interrupts,
    resume: bool,
) -> None:  # fmt: skip
    """Train trials of one compiled program, or resume them."""
    from flatout.engine.programs import Programs
    from flatout.populations.members import FOLDER, SPREAD, Member, load, save
    from flatout.populations.population import Population
    from flatout.populations.strategy import choose
    from flatout.storage.run_folder import final_summary
    from flatout.storage.trust import Consent

    made = [
        Member(one.name, resolve(one.algorithm, one.settings, {
            "run_dir": str(folder / FOLDER / one.name)}))
        for one in found
    ]  # fmt: skip
    programs, before = Programs(several=True), None
    if resume:
        before = load(folder, Consent(found[0].settings), {})[1]
    with interrupts.discardable():
        chosen = choose([one.config for one in made], strategy, programs, before)
    if not resume:
        save(folder, made[0].config, made, chosen)
    if before is not None and chosen.name == SPREAD:  # separate runs: skip ended ones
        made = [one for one in made if final_summary(Path(str(one.config.run.run_dir))) is None]
    population = Population(made, chosen, resume, interrupts, programs)
    told, last = set[str](), [0.0]

    def show(final: bool = False) -> None:
        now = time.monotonic()
        if now - last[0] < TELL_S and not final:
            return
        last[0] = now
        for state in population.states:
            name = state.member.name
            if name in told:
                continue
            tell(trial=name, steps=state.steps, updates=1, mean=state.mean, busy=chosen.name,
                 peak_mb=peak_rss_mb())  # fmt: skip
            if state.error:
                told.add(name)
                error = state.exception
                kind = USAGE if error is None else kind_of(error)
                if isinstance(error, FlatoutError) and kind != ROOM:
                    kind = USAGE
                tell(trial=name, error=state.error, kind=kind)
            elif state.ended:
                told.add(name)
                tell(trial=name, ended=state.ended, steps=state.steps)

    population.run(show)
    show(final=True)
