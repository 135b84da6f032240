"""A sweep: starts the trials, follows their progress, and records their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from flatout.config.schema import TrainConfig
from flatout.errors import writing
from flatout.populations.members import FOLDER
from flatout.reports.statistics import iqm
from flatout.run.curve import VALUES
from flatout.run.metric_rows import GrowingCurve, value_at
from flatout.storage.run_folder import final_summary
from flatout.sweeps.engine import LOST, Engine, Job
from flatout.sweeps.folder import WAIT_S
from flatout.sweeps.plan import Group, Study, Trial, trials
from flatout.sweeps.slots import Slots
from flatout_explain.files import nofollow

STOP_S = 60.0
"""Seconds in which a run that is asked to stop may save its last iteration."""

LOOK_S = 0.25

MOST_LOST = 5
"""Maximum lost workers after which a trial is tried again; more may be the trial's own fault."""

WAITING, RUNNING, DONE, FAILED, PRUNED = "waiting", "running", "done", "failed", "pruned"


@dataclass
class State:
    """The state of one trial.

    Attributes:
        path: the run folder.
        state: one of the five words above.
        mean: the mean return of the last episodes.
        rate: recent steps per second.
        busy: the part of the run that takes most of the time.
        score: the mean return of the last evaluation, or of the last episodes if the trial has
            none (`eval_every` 0); a classifier's accuracy.
        error: the message, if it failed.
        heard: the time of its last report.
        failures, losses: how often it failed, and how often its worker or machine was lost.
    """

    trial: Trial
    path: Path
    state: str = WAITING
    steps: int = 0
    mean: float | None = None
    rate: float = 0.0
    busy: str = ""
    score: float | None = None
    error: str = ""
    failures: int = 0
    losses: int = 0
    alone: bool = False
    steady: bool = False
    heard: float = 0.0
    _last: tuple[float, int] | None = None
    _began: float = 0.0
    _curve: GrowingCurve | None = None

    def begin(self, now: float) -> None:
        self.state, self._last, self._began, self.steady = RUNNING, None, now, False

    def hear(self, event: Mapping[str, Any], now: float) -> None:
        """Take over a report of progress."""
        self.heard = now
        self.steps, self.mean = int(event["steps"]), event["mean"]
        self.busy = str(event["busy"])
        self.steady = bool(event["updates"]) or now - self._began > 2 * WAIT_S
        if self._last is not None and now > self._last[0]:
            self.rate = (self.steps - self._last[1]) / (now - self._last[0])
        if self._last is None or now - self._last[0] > 2.0:
            self._last = (now, self.steps)

    def finish(self) -> bool:
        """Read the results in the folder; return whether the run is complete."""
        summary = final_summary(self.path)
        if summary is None:
            return False
        try:
            evaluated = value_at(self.path / "metrics.jsonl", None, "eval/return_mean")
        except (OSError, ValueError, LookupError, TypeError):
            return False
        self.steps, self.mean = summary["steps"], summary.get("return_mean_last")
        # Evaluations or training alone: an average over both kinds would mean nothing.
        self.score = evaluated if self.trial.settings["eval_every"] else self.mean
        if "test_accuracy" in summary:  # a classifier always has one
            self.score = summary["test_accuracy"]
        self.state, self.error = DONE, ""
        return True

    def reached(self, step: int, names: Sequence[str]) -> float | None:
        """Return the first recorded value of one of these metrics at or after a step, or None.

        Successive calls must have ascending steps.
        """
        if self._curve is None:
            self._curve = GrowingCurve(self.path / "metrics.jsonl", names)
        return self._curve.first(step)


def looks(base: TrainConfig) -> tuple[int, tuple[str, ...]]:
    """Return the steps between two decisions about stopping a group, and the metrics they use.

    These are the evaluations, or after each tenth of the run the last episodes.
    """
    if 0 < base.run.eval_every < base.run.steps:
        return base.run.eval_every, ("eval/return_mean", "eval/accuracy")
    return max(base.run.steps // 10, 1), tuple(VALUES)


@dataclass
class Sweep:
    """The training of the groups that a study proposes, on an engine.

    Args:
        base: the settings that all trials share.
        seeds: the seeds of each group.
        populations: names of trials that one process trains together, by the folder's name.
        retries: how often a failed trial is tried again.
    """

    path: Path
    base: TrainConfig
    seeds: Sequence[int]
    study: Study
    engine: Engine
    slots: Slots
    populations: Mapping[str, Sequence[str]] = field(default_factory=dict[str, list[str]])
    strategy: str = "auto"
    retries: int = 1
    states: dict[str, State] = field(default_factory=dict[str, State])
    groups: dict[str, list[State]] = field(default_factory=dict[str, list[State]])
    notes: list[str] = field(default_factory=list[str])
    _jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    _waiting: list[Job] = field(default_factory=list[Job])
    _told: set[str] = field(default_factory=set[str])
    _looked: dict[str, int] = field(default_factory=dict[str, int])
    _stopping: bool = False

    def run(self, show: Callable[[], None], stopped: Callable[[], bool] = lambda: False) -> None:
        """Train all groups; a trial that fails does not end the others.

        Args:
            show: a function that is called a few times a second.
            stopped: a function that returns True to end the loop early; `stop` is called next.
        """
        self._ask()
        while (self._jobs or self._waiting) and not stopped():
            self._fill()
            for event in self.engine.poll(LOOK_S):
                self._take(event)
            running = {name: [self.states[trial.name] for trial in job.trials]
                       for name, job in self._jobs.items()}  # fmt: skip
            steady = all(
                one.steady or one.state != RUNNING for some in running.values() for one in some
            )
            self.slots.look(time.monotonic(), steady, {
                name: (max(one.heard for one in some), sum(one.steps for one in some))
                for name, some in running.items()
            })  # fmt: skip
            self._ask()
            show()

    def stop(self) -> None:
        """Stop all runs; each is saved after its last whole iteration."""
        self._stopping = True
        self._waiting.clear()
        for name in self._jobs:
            self.engine.stop(name)
        until = time.monotonic() + STOP_S
        while self._jobs and time.monotonic() < until:
            for event in self.engine.poll(LOOK_S):
                self._take(event)

    def add(self, group: Group) -> None:
        """Add the trials of a group, with the results that are in their folders already."""
        where = self._population_of
        found = list[State]()
        for trial in trials(self.base, group, self.seeds):
            path = self.path / trial.name
            if trial.name in where:
                path = self.path / where[trial.name] / FOLDER / trial.name
            depth = len(path.relative_to(self.path).parts)
            with writing(path), suppress(FileNotFoundError), nofollow.folder(path, depth):
                pass  # another user's folder may link to runs of this user
            found.append(State(trial, path))
            if not found[-1].finish() and group.name in self.study.pruned:
                found[-1].state = PRUNED
        self.states |= {state.trial.name: state for state in found}
        self.groups[group.name] = found

    @cached_property
    def _population_of(self) -> dict[str, str]:
        """The name of the population of each trial that is in one."""
        return {trial: name for name, some in self.populations.items() for trial in some}

    def _ask(self) -> None:
        """Ask the study for new groups while more jobs may run."""
        while (room := self.slots.limit - len(self._jobs) - len(self._waiting)) > 0:
            asked = self.study.ask(room)
            self.notes += self.study.notes
            self.study.notes.clear()
            if not asked:
                return
            for group in asked:
                self.add(group)
                self._tell(group.name)
            self._queue(asked)

    def _queue(self, asked: Sequence[Group]) -> None:
        """Add the unfinished trials of groups to the waiting jobs."""
        where = self._population_of
        jobs = dict[str, Job]()
        for state in (state for group in asked for state in self.groups[group.name]):
            name = where.get(state.trial.name)
            if state.state == WAITING:
                jobs[name or state.trial.name] = (
                    self._job(state) if name is None else self._population(name)
                )
        self._waiting += jobs.values()

    def _population(self, name: str) -> Job:
        some = tuple(self.states[one].trial for one in self.populations[name])
        return Job(name, some, str(self.path / name), True, self.strategy)

    def _job(self, state: State) -> Job:
        return Job(state.trial.name, (state.trial,), str(state.path))

    def _fill(self) -> None:
        """Start waiting jobs while more may run."""
        now = time.monotonic()
        while self._waiting and len(self._jobs) < self.slots.limit:
            job = next((one for one in self._waiting if one.name not in self._jobs), None)
            if job is None:
                return  # what failed is tried again when its process has let go of it
            alone = any(self.states[trial.name].alone for trial in job.trials)
            if (alone and self._jobs) or any(other.alone for other in self._jobs.values()):
                return  # one of them needs the memory of all
            self._waiting.remove(job)
            cap = self.slots.free_mb if alone else self.slots.cap_mb
            job = replace(job, cap_mb=cap, alone=alone)
            self._jobs[job.name] = job
            for trial in job.trials:
                if self.states[trial.name].state == WAITING:
                    self.states[trial.name].begin(now)
            self.engine.start(job)

    def _take(self, event: Mapping[str, Any]) -> None:
        """Handle one of the engine's events."""
        now = time.monotonic()
        if "done" in event:
            job = self._jobs.pop(str(event["done"]), None)
            self.slots.ended(now)
            for trial in () if job is None else job.trials:
                if self.states[trial.name].state == RUNNING:
                    self._take({"trial": trial.name, "ended": "signal"})
            return
        state = self.states[str(event["trial"])]
        if state.state != RUNNING:
            return
        if "error" in event:
            if self._stopping and event["kind"] in ("died", LOST):  # stopped while it started
                state.state = WAITING
            else:
                self._failed(state, str(event["error"]), str(event["kind"]))
        elif "ended" in event:
            if event["ended"] == "signal" and self._stopping:
                state.state = WAITING
            elif event["ended"] == "signal":  # this sweep did not send it
                self._failed(state, "its process was ended by a signal.", "died")
            elif state.finish():
                self._tell(state.trial.group)
            else:
                self._failed(state, f"{state.path / 'summary.json'} cannot be read.", "free")
        else:
            state.hear(event, now)
            self.slots.each_mb = max(self.slots.each_mb, float(event["peak_mb"]))
        if self.study.prunes:
            self._prune(state.trial.group)

    def _prune(self, name: str) -> None:
        """Ask the study whether to stop a group, at each step that most trials have reached."""
        found = [state for state in self.groups[name] if state.state != FAILED]
        every, metrics = looks(self.base)
        step = self._looked.get(name, 0) + every
        while step < self.base.run.steps and name not in self.study.pruned:
            begun = sum(state.state != WAITING for state in found)
            values = [state.reached(step, metrics) for state in found if state.steps >= step]
            known = [value for value in values if value is not None]
            if len(known) < begun or 2 * len(known) < len(found) or not known:
                return
            if self.study.prune(name, step, float(iqm([np.array(known)]))):
                self._give_up(found)
            self._looked[name] = step
            step += every

    def _give_up(self, found: Sequence[State]) -> None:
        """Stop the running and waiting trials of a group."""
        names = {state.trial.name for state in found}
        self._waiting = [job for job in self._waiting if job.name not in names]
        for job in names & self._jobs.keys():
            self.engine.stop(job)
        for state in found:
            if state.state in (WAITING, RUNNING):
                state.state = PRUNED

    def _failed(self, state: State, error: str, kind: str) -> None:
        state.error = error
        name = state.trial.name
        if kind == LOST:
            state.losses += 1
            again, how = state.losses <= MOST_LOST, "again; lost workers do not count as failures"
            if not again:
                error = state.error = f"{error} Its worker was lost {state.losses} times."
        else:
            state.failures += 1
            again, how = kind != "usage" and state.failures <= self.retries, "once more"
        if again:
            state.state, state.alone = WAITING, kind == "room" or (state.alone and kind == LOST)
            self.notes.append(f"{name}: {error} It is tried {how}.")
            shared = self._population_of.get(name)
            if shared is None:
                self._waiting.append(self._job(state))
            elif all(job.name != shared for job in self._waiting):
                self._waiting.append(self._population(shared))
            return
        state.state = FAILED
        self.notes.append(f"{name}: {error}")
        self._tell(state.trial.group)

    def _tell(self, group: str) -> None:
        """Report a group to the study once all of its trials have ended."""
        found = self.groups[group]
        if group in self._told or any(s.state in (WAITING, RUNNING) for s in found):
            return
        self._told.add(group)
        scores = [state.score for state in found if state.score is not None]
        self.study.tell(group, float(iqm([np.array(scores)])) if scores else None)
