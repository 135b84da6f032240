"""The runs of an agent: the state from which the next run starts, and the learning curve."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flatout.config.schema import RESUMABLE, TrainConfig
from flatout.config.settings import revise, with_run
from flatout.errors import UsageError
from flatout.populations.alone import continues_at
from flatout.reports.curves import Run
from flatout.run.curve import Points
from flatout.run.metric_rows import ROWS
from flatout.run.progress import Progress
from flatout.run.resume import (
    Saved,
    Start,
    begun_from,
    continue_counters,
    continued_seed,
)
from flatout.storage.checkpoint import load_latest
from flatout.storage.run_folder import load_config
from flatout.types import Snapshot


class History:
    """The runs of one agent.

    Attributes:
        learned: the number of runs in which it learned.
        points: the learning curve of the runs here; None before the first one.
        loaded_steps: environment steps that a loaded agent had learned from; None if unknown.
        counts_loaded: whether the steps of the last run include `loaded_steps`.
    """

    def __init__(self) -> None:
        self.learned = 0
        self.points: Points | None = None
        self.loaded_steps: int | None = None
        self.counts_loaded = False
        self._trained: dict[str, Any] = {}
        self._kept: tuple[TrainConfig, Snapshot] | None = None  # the last run, to continue
        self._source: Path | None = None  # the file it came from, or its last run's folder
        self._before: TrainConfig | None = None  # the settings that it was loaded with
        self._given: frozenset[str] = frozenset()  # those that were changed then
        self._replaced: dict[str, np.ndarray] = {}  # since the last run

    @property
    def kept(self) -> bool:
        """Whether there is a run to continue, perhaps a failed one."""
        return self._kept is not None

    @property
    def steps(self) -> int | None:
        """Environment steps of the last run here, also of a failed one, or else `loaded_steps`."""
        if self._kept is None:
            return self.loaded_steps
        return int(self._kept[1].data["progress"]["steps"])

    def load(self, saved: Saved, path: Path, changed: Collection[str]) -> None:
        """Start from a saved agent, with some settings changed."""
        self.learned = 0 if "seed" in changed else saved.learned
        self._source, self._before, self._given = path, saved.config, frozenset(changed)
        self.loaded_steps = saved.steps

    def keep(self, config: TrainConfig, final: Snapshot, path: Path | None, new_run: bool) -> None:
        """Start the next run from the end of this one; `new_run` if it did not continue another."""
        self._kept, self._source = (config, final), path
        self._given, self._replaced = frozenset(), {}
        self.learned += new_run

    def replace(self, arrays: dict[str, np.ndarray]) -> None:
        """Replace the learned arrays from which the next run starts."""
        self._replaced.update(arrays)

    def draw(self, points: Points, settings: dict[str, Any]) -> None:
        """Add a run's learning curve."""
        self.points, self._trained = _joined(self.points, points), settings

    def curve(self, title: str, label: str) -> Run:
        """Return the learning curve as data; `label` says what its values are.

        Raises:
            UsageError: the agent was not trained here, or no episode has ended.
        """
        if self.points is None or not len(self.points[0]):
            why = "has learned nothing here" if self.points is None else "ended no episode yet"
            raise UsageError(f"there is nothing to plot: this agent {why}.")
        steps, seconds, values = self.points
        return Run(title, steps, values, self._trained, seconds, label)

    def next_run(
        self, config: TrainConfig, arrays: dict[str, np.ndarray] | None, total: int | None,
        path: Path | None, reset: bool | None,
    ) -> tuple[TrainConfig, Start | None, bool]:  # fmt: skip
        """Return the next run's settings, its start, and whether it resumes the run in `path`.

        Args:
            config: the agent's settings.
            arrays: the learning state with which the agent acts.
            total, path: see `Agent.learn`.
            reset: see `reset_argument`.

        Raises:
            UsageError, CheckpointError: the loaded agent does not fit these settings, or is a
                member of a population that has trained further.
        """
        source, run = self._source, config.run
        parent = None if source is None else str(source)
        start, done, resume = None, 0, False
        if not reset and path and source and path.is_dir() and path.resolve() == source.resolve():
            config, done, resume = self._of_folder(path, config), continues_at(path), True
            self.counts_loaded = True
        elif not reset and self._kept is not None:
            config, state = self._kept
            start = Start(state, True, parent)
            done = start.made
        elif reset is False and source and self._before and continues_at(source):
            _, done, state = load_latest(source)
            start = Start(state, True, parent)
            self.counts_loaded = True
        elif not reset and source and self._before and continues_at(source):
            config, start = begun_from(source, self._before, config, self._given)
            self.counts_loaded = False
        else:
            if arrays is not None and reset is False and source is not None:
                start = continue_counters(source, config, arrays, self.loaded_steps, self._given)
                done = start.steps or 0
            elif arrays is not None:
                start = Start(Snapshot(arrays, {}), parent=parent)
            self.counts_loaded = start is not None and start.steps is not None
            config = with_run(config, seed=continued_seed(run.seed, self.learned))
        if self._replaced and resume:
            raise UsageError(
                f"the run in {path} continues with its own parameters: to start from those of "
                "set_parameters, choose another run_dir."
            )
        if start is not None:
            start.state.arrays.update(self._replaced)
            if start.continues and path is not None:
                start = replace(start, state=_without_best(start.state))
        if total is None:
            total = run.steps - done if run.steps > done else run.steps
        if start is not None and start.continues:
            progress, goal = Progress.from_json(start.state.data["progress"]), run.stop_at_return
            if goal is not None and progress.ended(done + total, goal) == "return":
                start = replace(start, notes=(goal_reached(done, goal),))
        changes = {"steps": done + total, "run_dir": None if path is None else str(path)}
        return revise(config, changes), start, resume

    def _of_folder(self, path: Path, now: TrainConfig) -> TrainConfig:
        """Return the settings of the run in the folder that this agent comes from.

        Raises:
            UsageError: the agent has settings that the run cannot take over.
        """
        config = load_config(path, None) if self._kept is None else self._kept[0]
        for name in sorted(self._given - RESUMABLE):
            raise UsageError(
                f"the run in {path} keeps its own {name}: to start a new run from it with "
                "another, choose another run_dir."
            )
        given = {name: value for name, value in now.flat().items() if name in self._given}
        return revise(config, given)


def _without_best(state: Snapshot) -> Snapshot:
    """Return a run's state for another folder, which does not have the best parameters so far."""
    progress = state.data["progress"] | {"best_return": None}
    return replace(state, data=state.data | {"progress": progress})


def goal_reached(steps: int, goal: float) -> str:
    """Return a message about a run that cannot continue, because it reached `stop_at_return`."""
    return (
        f"nothing is left to learn: after {steps:,} steps the run had reached stop_at_return "
        f"{goal:g}; learn(reset=True) starts a new run, and load(path, stop_at_return=...) takes "
        "another return"
    )


def _joined(before: Points | None, after: Points) -> Points:
    """Join two curves and thin them evenly; return `after` alone if its steps start again."""
    if before is None or not len(before[0]) or not len(after[0]) or after[0][0] <= before[0][-1]:
        return after
    steps, seconds, values = (np.concatenate(pair) for pair in zip(before, after, strict=True))
    if len(steps) > 2 * ROWS:
        even = np.linspace(steps[0], steps[-1], ROWS)
        chosen = np.unique(np.searchsorted(steps, even))
        steps, seconds, values = steps[chosen], seconds[chosen], values[chosen]
    return steps, seconds, values
