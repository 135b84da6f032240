"""Callbacks for common tasks; docs/callbacks.md shows how to write one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flatout.errors import UsageError, short, writing
from flatout.run.callbacks import Callback, Run
from flatout.storage import trees


class StopOnReward(Callback):
    """A callback that stops the run once the mean return reaches a threshold.

    Args:
        threshold: the mean return of the last 100 training episodes; fewer never count.
        evaluation: use the mean return of an evaluation (`eval_every`) instead.
    """

    def __init__(self, threshold: float, evaluation: bool = False) -> None:
        self._threshold, self._evaluation = threshold, evaluation

    def on_start(self, run: Run) -> None:
        _need_evaluations(self, run, self._evaluation)

    def on_iteration(self, run: Run) -> bool | None:
        mean = None if self._evaluation else run.progress.return_mean_100
        return None if mean is None else mean < self._threshold

    def on_evaluation(self, run: Run) -> bool | None:
        return run.metrics["eval/return_mean"] < self._threshold if self._evaluation else None


class StopOnNoImprovement(Callback):
    """A callback that stops the run after several evaluations without a new best return.

    Args:
        patience: the number of evaluations in a row.
        least: the amount by which a return must exceed the best one so far.
    """

    def __init__(self, patience: int, least: float = 0.0) -> None:
        self._patience, self._least = patience, least
        self._best, self._since = -math.inf, 0

    def on_start(self, run: Run) -> None:
        _need_evaluations(self, run, True)
        if not run.progress.steps:  # another run than the one before
            self._best, self._since = -math.inf, 0

    def on_evaluation(self, run: Run) -> bool:
        mean = run.metrics["eval/return_mean"]
        better = self._best == -math.inf or mean > self._best + self._least
        self._best, self._since = (mean, 0) if better else (self._best, self._since + 1)
        return self._since < self._patience

    def state(self) -> dict[str, Any]:
        best = None if self._best == -math.inf else self._best
        return {"best": best, "since": self._since}

    def restore(self, values: dict[str, Any]) -> None:
        best, self._since = values["best"], int(values["since"])
        self._best = -math.inf if best is None else float(best)


class StopOnTime(Callback):
    """A callback that stops the run after a number of seconds.

    The earlier parts of a resumed run count. Runs with the same seed may end at different steps.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def on_iteration(self, run: Run) -> bool:
        return run.wall_s < self._seconds


class _Every(Callback):
    """Base of callbacks that act every `every` environment steps, at the end of an iteration."""

    def __init__(self, every: int) -> None:
        if not isinstance(every, int | float) or not every >= 1:
            raise UsageError(
                f"{type(self).__name__}: every = {short(every)} is no number of steps."
            )
        self._every, self._next = every, every

    def on_start(self, run: Run) -> None:
        if self._next > run.progress.steps + self._every:  # of another, longer run
            self._next = (run.progress.steps // self._every + 1) * self._every

    def on_iteration(self, run: Run) -> None:
        if run.progress.steps >= self._next:
            self._next = (run.progress.steps // self._every + 1) * self._every
            self.due(run)

    def due(self, run: Run) -> None:
        """Act; called each time that `every` more steps have been made."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        return {"next": self._next}

    def restore(self, values: dict[str, Any]) -> None:
        self._next = int(values["next"])


class Evaluate(_Every):
    """A callback that evaluates the agent with a user's function.

    Args:
        function: ``(agent) -> number``, or numbers by name; logged as ``eval/NAME``.
        every: environment steps between evaluations.
        name: the name of a single number.
    """

    def __init__(
        self, function: Callable[[Any], float | Mapping[str, float]], every: int,
        name: str = "score",
    ) -> None:  # fmt: skip
        super().__init__(every)
        self._function, self._name = function, name

    def due(self, run: Run) -> None:
        found = self._function(run.agent)
        for name, value in (found if isinstance(found, Mapping) else {self._name: found}).items():
            run.log(f"eval/{name}", value)


class SaveEvery(_Every):
    """A callback that saves the agent regularly, as ``agent_STEP.safetensors``.

    Args:
        every: environment steps between files.
        folder: the folder of the files; by default the run folder.
    """

    kind: str = "agent"
    ending: str = "safetensors"

    def __init__(self, every: int, folder: str | Path | None = None) -> None:
        super().__init__(every)
        self._folder = None if folder is None else Path(folder).absolute()

    def on_start(self, run: Run) -> None:
        super().on_start(run)
        if self._folder is None and run.folder is None:
            raise UsageError(f"{type(self).__name__} needs a folder, or a run with run_dir.")

    def due(self, run: Run) -> None:
        folder = self._folder or run.folder
        assert folder is not None
        folder.mkdir(parents=True, exist_ok=True)
        self.write(run, folder / f"{self.kind}_{run.progress.steps:012d}.{self.ending}")

    def write(self, run: Run, path: Path) -> None:
        """Write the agent's file."""
        run.agent.save(path)


class RecordEvery(SaveEvery):
    """A callback that records an episode regularly, as ``video_STEP.gif``.

    Args:
        every, folder: see `SaveEvery`.
        env: another environment with the same spaces; see `Agent.record`.
    """

    kind: str = "video"
    ending: str = "gif"

    def __init__(self, every: int, folder: str | Path | None = None, env: Any = None) -> None:
        super().__init__(every, folder)
        self._env = env

    def on_start(self, run: Run) -> None:
        super().on_start(run)
        if self._env is None and (task := run.agent.task).vector is not None:
            raise UsageError(
                f"{task.name} is a vector environment, of which no pictures are made: name a "
                f"single environment with the same spaces, RecordEvery({self._every}, env=ID)."
            )

    def write(self, run: Run, path: Path) -> None:
        if self._folder is None:  # a run folder from elsewhere may have a link of that name
            with writing(path):
                trees.remove_file(path)
        run.agent.record(path, env=self._env)


def _need_evaluations(callback: Callback, run: Run, needed: bool) -> None:
    if needed and not run.config.run.eval_every:
        raise UsageError(
            f"{type(callback).__name__} looks at evaluations, and this run has none: give the "
            "agent eval_every=10_000, say."
        )
