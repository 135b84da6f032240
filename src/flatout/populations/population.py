"""Many agents at the same time, each an ordinary run; programs are compiled once.

``spread``: several members train at the same time, each in a thread, and others follow.
``together``: one program steps and teaches all of a group, and other groups follow.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

from flatout.config.hyper import OwnConfig
from flatout.config.placement import parse
from flatout.engine.members import FusedPopulation, Group
from flatout.engine.programs import Programs
from flatout.errors import CheckpointError, FlatoutError, failure, full_memory
from flatout.hardware.inventory import inventory, resumed_placement
from flatout.populations.members import SPREAD, Member, Strategy
from flatout.run.auto import with_placement
from flatout.run.interrupts import Interrupts
from flatout.run.job import compiling
from flatout.run.progress import Display, Progress
from flatout.run.recording import INTERVAL_S
from flatout.run.resume import newest_step
from flatout.run.trainer import Trainer
from flatout.storage.joint import Joint
from flatout.storage.run_folder import GROUPS, RunFolder, load_config
from flatout_explain.files import nofollow
from flatout_explain.hardware.monitor import Monitor, Sampler

LOOK_S = 0.1

KEPT_APART = 32
"""Of more members than these, trained as one program, only those that end early have whole
checkpoints of their own."""


class Following(Interrupts):
    """Interrupts of a member's thread, which follow the signals of the main thread.

    Args:
        waits: whether to wait until all members of one program are at the same iteration
            (`FusedPopulation`).
    """

    def __init__(self, signals: Interrupts, waits: bool) -> None:
        super().__init__()
        self._signals, self._waits = signals, waits
        self.installed = True

    def check(self) -> None:
        if not self._waits:
            self._signals.check()


@dataclass
class State(Display):
    """The progress and the result of one member.

    Attributes:
        ended: why it ended; empty while it waits or trains.
        error: the sentence, if it failed.
        exception: with which it failed in this process.
    """

    member: Member
    steps: int = 0
    mean: float | None = None
    wall_s: float = 0.0
    ended: str = ""
    error: str = ""
    exception: Exception | None = None
    summary: dict[str, Any] = field(default_factory=dict[str, Any])

    def update(self, progress: Progress, row: dict[str, float], wall_s: float) -> None:
        self.steps, self.wall_s = progress.steps, wall_s
        self.mean = progress.return_mean_last

    def fail(self, sentence: str, error: Exception) -> None:
        """Note that the member ended with an exception."""
        self.error, self.ended, self.exception = sentence, "failed", error

    def sum_up(self, summary: dict[str, Any]) -> None:
        """Take over what a run ended with: one that had ended before a resume writes no row."""
        self.summary, self.ended = summary, str(summary.get("ended", "signal"))
        self.steps = summary.get("steps", self.steps)
        self.mean = summary.get("return_mean_last", self.mean)
        self.wall_s = summary.get("wall_s", self.wall_s)


class Population:
    """Trains members, each with a run folder of its own.

    On several devices, members that train as runs of their own are on one after the other in turn;
    of groups, each device trains one at a time.

    Args:
        members: of one configuration's shape.
        strategy: how they share the machine.
        resume: whether to resume the runs in their folders.
        interrupts: of the main thread; a signal stops every member at its last boundary.
        programs: that are compiled already, and what announces others.

    Attributes:
        states: of each member.
    """

    def __init__(
        self, members: Sequence[Member], strategy: Strategy, resume: bool, interrupts: Interrupts,
        programs: Programs | None = None,
    ) -> None:  # fmt: skip
        self.states = [State(member) for member in members]
        self._strategy, self._resume = strategy, resume
        self._interrupts = interrupts
        self._programs = programs or Programs(several=True)
        self._sampler: Sampler | None = None  # of all members, while they train
        self._on = max(len(strategy.placements), 1)
        self._shared = {0: self._programs}
        for place in range(1, self._on):
            self._shared[place] = Programs(several=True, announce=self._programs.announce)

    def run(self, show: Callable[[], None] = lambda: None) -> None:
        """Train all; a member that fails ends by itself, the others go on.

        Args:
            show: called several times a second.
        """
        spread = self._strategy.name == SPREAD
        paths = {Path(str(state.member.config.run.run_dir)) for state in self.states}
        with ExitStack() as stack:
            for folder in {path.parent.parent for path in paths}:
                stack.enter_context(nofollow.confined(folder))
            self._sampler = stack.enter_context(closing(Sampler(Monitor(os.getpid(), INTERVAL_S))))
            threads = stack.enter_context(
                ThreadPoolExecutor(self._strategy.size if spread else self._on)
            )
            if spread:
                jobs = [
                    threads.submit(self._member, state, place, self._shared[place])
                    for state, place in zip(self.states, cycle(range(self._on)), strict=False)
                ]
            else:
                jobs = [threads.submit(self._groups, place) for place in range(self._on)]
            while not all(job.done() for job in jobs):
                time.sleep(LOOK_S)
                show()
        for job in jobs:
            job.result()

    @property
    def defect(self) -> Exception | None:
        """The first exception of a member that is a defect of Flatout, whose traceback is needed;
        None if there is none."""
        found = (state.exception for state in self.states)
        unexpected = (one for one in found if one is not None and not full_memory(one))
        return next((one for one in unexpected if not isinstance(one, FlatoutError)), None)

    def _groups(self, place: int) -> None:
        """Train the groups of one device, one after another."""
        size, compiled = self._strategy.size, dict[Any, Any]()
        for first in range(place * size, len(self.states), self._on * size):
            states = dict(enumerate(self.states[first : first + size]))
            with ExitStack() as stack:
                group, alone = self._group(states, first // size, stack)
                for some, kept in ((states, group), *(({0: state}, None) for state in alone)):
                    together = FusedPopulation(
                        len(some), compiled, self._compiling, lambda: self._interrupts.signum, kept
                    )
                    self._at_once(some, place, together)

    def _group(
        self, states: dict[int, State], number: int, stack: ExitStack
    ) -> tuple[Group | None, list[State]]:
        """Return the checkpoint from which a group resumes, and members that resume alone.

        Members at another step, and members that have failed, are removed from `states`; the former
        are returned."""
        hyper = self.states[0].member.config.hyper
        if isinstance(hyper, OwnConfig) or (
            getattr(hyper, "rollout_episodes", None) is not None
        ):  # fmt: skip
            return None, []  # members keep checkpoints of their own
        run = self.states[0].member.config.run
        folder = Path(str(run.run_dir)).parent.parent / GROUPS / str(number)
        names = [state.member.name for state in states.values()]
        joint = stack.enter_context(closing(Joint(folder, run.keep_checkpoints)))
        alone = list[State]()
        saved = joint.newest if self._resume else None
        if saved is not None and not {*saved.members, *saved.slots} <= {*names}:
            raise CheckpointError(f"{saved.path} is of other members than this population's.")
        for place, state in list(states.items()):
            own = newest_step(Path(str(state.member.config.run.run_dir)))
            there = saved is not None and state.member.name in saved.members
            if saved is not None and there and own <= saved.step:
                continue
            if own:
                alone.append(states.pop(place))
            elif saved is not None:
                why = saved.failed.get(state.member.name, "its state was not saved.")
                state.error, state.ended = why, "failed"
                del states[place]
        return Group(names, joint, saved, len(self.states) <= KEPT_APART), alone

    def _at_once(self, states: dict[int, State], place: int, together: FusedPopulation) -> None:
        shared = Programs(several=True)
        with ThreadPoolExecutor(max(len(states), 1), "member") as threads:
            jobs = [
                threads.submit(
                    self._member, state, place, Programs(together, number, True, shared=shared)
                )
                for number, state in states.items()
            ]
        for job in jobs:
            job.result()

    def _compiling(self, size: int) -> AbstractContextManager[None]:
        """Return a context that announces the compilation of a program for `size` members."""
        announce = self._programs.announce or (lambda _: None)
        return compiling(f"one program for {size} members", self._strategy.key, announce)

    def _member(self, state: State, place: int, programs: Programs) -> None:
        """Train a member on the device of this number."""
        try:
            if self._interrupts.signum is not None:
                state.ended = "signal"
                return
            self._train(state, place, programs)
        finally:
            if programs.together is not None:
                lost = not state.error and not state.summary
                programs.together.leave(programs.member, state.error, lost)

    def _train(self, state: State, place: int, programs: Programs) -> None:
        config = state.member.config
        if self._strategy.placements:
            config = with_placement(config, self._strategy.placements[place])
        path = Path(str(config.run.run_dir))
        try:
            resume = self._resume and (path / "config.json").exists()
            if resume and config.run.chosen_here and programs.together is None:
                # Another may have been measured since then, whose bits differ.
                before = load_config(path, None).run.placed
                if before is not None and before.gpus:  # they may be full, or not here
                    before = parse(resumed_placement(str(before), inventory())[0])
                config = config if before is None else with_placement(config, before)
            with closing(RunFolder(path, resume)) as folder:
                trainer = Trainer(
                    config, folder=folder, resume=resume, display=state,
                    interrupts=Following(self._interrupts, programs.together is not None),
                    programs=programs, sampler=self._sampler, started=time.perf_counter_ns(),
                )  # fmt: skip
                state.sum_up(trainer.run())
        except FlatoutError as error:
            state.fail(str(error), error)
        except Exception as error:  # a full memory, or a defect: the others still end as they do
            state.fail(full_memory(error) or failure(error), error)
