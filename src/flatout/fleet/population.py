"""Many agents at the same time, each an ordinary run; programs are compiled once.

``spread``: as many members train at the same time as there are cores, each in a thread, and others
follow. ``together``: one program steps and teaches all of them, which is what fills a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout.config.schema import TrainConfig
from flatout.errors import FlatoutError
from flatout.fleet.members import Member
from flatout.hardware.inventory import inventory
from flatout.learner.programs import Programs
from flatout.run.interrupts import Interrupts
from flatout.run.progress import Display, Progress
from flatout.run.trainer import Trainer
from flatout.schedules.together import Together
from flatout.storage.run_folder import RunFolder

LOOK_S = 0.1


def workers(config: TrainConfig, count: int) -> int:
    """How many of so many members train at the same time; 0 for all as one program, which fills a
    GPU. On a CPU each core is filled by a member of its own."""
    hardware, placement = inventory(), config.run.placement.strip()
    automatic = placement == "auto" and bool(hardware.usable_gpus)
    on_device = config.env.env_backend == "device" or "sampler=device" in placement
    if on_device and ("gpu" in placement or automatic):
        return 0
    return min(hardware.cores, count)


class Following(Interrupts):
    """What a member's thread sees of the signals that came to the main thread."""

    def __init__(self, signals: Interrupts) -> None:
        super().__init__()
        self._signals = signals
        self.installed = True

    def check(self) -> None:
        self._signals.check()


@dataclass
class State(Display):
    """What is known of one member while it trains, and after.

    Attributes:
        ended: why it ended; empty while it waits or trains.
        error: the sentence, if it failed.
    """

    member: Member
    steps: int = 0
    mean: float | None = None
    wall_s: float = 0.0
    ended: str = ""
    error: str = ""
    summary: dict[str, Any] = field(default_factory=dict[str, Any])
    curve: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])

    def update(self, progress: Progress, row: dict[str, float], wall_s: float) -> None:
        self.steps, self.wall_s = progress.steps, wall_s
        if progress.returns:
            self.mean = sum(progress.returns) / len(progress.returns)
            self.curve.append((progress.steps, self.mean))


class Population:
    """Trains members, each with a run folder of its own.

    Args:
        members: of one configuration's shape.
        workers: how many train at the same time; 0 for all, as one program.
        resume: go on with what their folders hold.
        interrupts: of the main thread; a signal stops every member at its last boundary.

    Attributes:
        states: of each member.
    """

    def __init__(
        self, members: Sequence[Member], workers: int, resume: bool, interrupts: Interrupts
    ) -> None:
        self.states = [State(member) for member in members]
        self._workers, self._resume = workers, resume
        self._interrupts = interrupts
        self._together = None if workers else Together(len(members))
        self._programs = Programs(several=True)

    def run(self, show: Callable[[], None] = lambda: None) -> None:
        """Train all; a member that fails ends by itself, the others go on.

        Args:
            show: called several times a second.
        """
        with ThreadPoolExecutor(self._workers or len(self.states), "member") as threads:
            jobs = [threads.submit(self._member, i, s) for i, s in enumerate(self.states)]
            while not all(job.done() for job in jobs):
                time.sleep(LOOK_S)
                show()
        for job in jobs:
            job.result()

    def _member(self, number: int, state: State) -> None:
        try:
            if self._interrupts.signum is not None:
                state.ended = "signal"
                return
            programs = self._programs
            if self._together is not None:
                programs = Programs(self._together, number, several=True)
            self._train(state, programs)
        finally:
            if self._together is not None:
                self._together.leave()

    def _train(self, state: State, programs: Programs) -> None:
        path = Path(str(state.member.config.run.run_dir))
        try:
            with closing(RunFolder(path, self._resume and path.exists())) as folder:
                trainer = Trainer(
                    state.member.config, folder=folder, resume=folder.has_saved,
                    display=state, interrupts=Following(self._interrupts),
                    programs=programs, started=time.perf_counter_ns(),
                )  # fmt: skip
                state.summary = trainer.run()
                state.ended = str(state.summary.get("ended", "signal"))
        except FlatoutError as error:
            state.error, state.ended = str(error), "failed"
