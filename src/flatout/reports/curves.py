"""Learning curves of several runs: their values over steps or seconds, with confidence bands."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flatout.errors import CheckpointError, FlatoutError, UsageError, short
from flatout.populations.members import FOLDER
from flatout.reports.figure import PICTURES, check_file, content, figure
from flatout.reports.runs import alike, rows
from flatout.reports.statistics import Statistic, interval, mean
from flatout.run.curve import (
    AXES,
    EVALUATIONS,
    FEWEST_RUNS,
    VALUES,
    Curve,
    axis,
    blocks,
    points,
    svg,
)
from flatout.run.metric_rows import evaluated, sampled
from flatout.storage.run_folder import load_config
from flatout_explain import output_file
from flatout_explain.files import nofollow

POINTS = 200
"""Values of a curve."""


@dataclass(frozen=True)
class Run:
    """One run's curve: steps and values ``[K]``, and the settings that name it.

    Attributes:
        evaluations: the curve of its evaluations, if there are several.
    """

    label: str
    steps: np.ndarray
    returns: np.ndarray
    settings: dict[str, object]
    seconds: np.ndarray | None = None  # [K], since the run's start
    value: str = next(iter(VALUES.values()))  # what the values are
    evaluations: Run | None = None


def read(path: Path) -> Run:
    """A run's curve from its metrics.

    Raises:
        UsageError: it is no run, or has told of no episode yet.
    """
    if path.is_file():
        raise UsageError(f"{path} is a file; give the folder of a run.")
    config = load_config(path, None)
    try:
        run = of_metrics(path / "metrics.jsonl", path.name, config.flat())
    except FileNotFoundError:
        raise UsageError(f"{path} has no curve yet: its run has not made its first step.") from None
    except OSError as error:
        raise UsageError(
            f"{path / 'metrics.jsonl'} cannot be read: {error.strerror or error}."
        ) from None
    if not len(run.steps):
        raise UsageError(f"{path} has no mean return yet: no episode has ended.")
    return run


def of_metrics(path: Path, label: str, settings: dict[str, object]) -> Run:
    """The curves of a file of metrics; that of training may be without a point.

    Raises `OSError` if the file cannot be read.
    """
    (steps, seconds, values), name = points(sampled(path, VALUES))
    trained = Run(label, steps, values, settings, seconds, name)
    (steps, seconds, values), name = points(evaluated(path, EVALUATIONS), EVALUATIONS)
    if len(steps) < 2:
        return trained
    return replace(trained, evaluations=Run(label, steps, values, settings, seconds, name))


def of_one_score(runs: Sequence[Run], score: str = "eval") -> list[Run]:
    """The curves by which these runs can be compared: those of their evaluations if all have them
    (and `score` is "eval"), otherwise those of training."""
    evaluations = [run.evaluations for run in runs if run.evaluations is not None]
    return evaluations if score == "eval" and len(evaluations) == len(runs) else list(runs)


def found(paths: Sequence[Path]) -> list[Path]:
    """The run folders: those of a population's members in the place of a population, and those in
    and below a folder that is neither a run nor a population.

    Raises:
        CheckpointError: the folder of members is a link, or cannot be read.
    """
    runs: list[Path] = []
    for path in paths:
        inside = path / FOLDER
        try:
            with nofollow.folder(inside) as opened, os.scandir(opened.listed) as entries:
                names = [one.name for one in entries if one.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            below = [] if (path / "config.json").exists() or not path.is_dir() else rows(path)
            runs += [path / row.run for row in below] or [path]
        except OSError as error:
            raise CheckpointError(f"{inside} cannot be read: {error.strerror}.") from None
        else:
            runs += [inside / name for name in sorted(names)]
    return list(dict.fromkeys(runs))  # one that is named twice is one run


@dataclass(frozen=True)
class View:
    """How curves are shown.

    Attributes:
        by: what they run over, a key of `AXES`.
        smooth: share of a curve's length over which each value is averaged with those before it.
        group: settings that tell curves apart; without any, all but seed and folder.
    """

    by: str = "steps"
    smooth: float = 0.0
    group: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises `UsageError` for impossible values."""
        if self.by not in AXES:
            raise UsageError(f"by = {self.by!r} is neither {' nor '.join(AXES)}.")
        if not isinstance(self.smooth, int | float) or not 0 <= self.smooth <= 1:
            raise UsageError(
                f"smooth = {short(self.smooth)} is impossible: it is a share of a curve's length, "
                "from 0 to 1, such as 0.05."
            )


PLAIN = View()


def curves(runs: Sequence[Run], view: View = PLAIN) -> list[Curve]:
    """One curve for each group of runs with equal settings, in the order of the first of each.

    Raises:
        UsageError: no run has a setting by which to group.
    """
    found = alike([run.settings for run in runs], view.group)
    return [band([runs[i] for i in places], label, view) for label, places in found]


def band(
    group: Sequence[Run], label: str, view: View = PLAIN,
    statistic: Statistic = mean,
) -> Curve:  # fmt: skip
    """Return one curve of several runs, as far as the shortest of them goes: a statistic over runs
    and its 95 % interval.

    Runs are taken together after equal numbers of steps. Over seconds, such a point lies at the
    mean of the times at which the runs had made these steps, so that a group of fast and slow runs
    has a curve even if no second belongs to all of them.
    """
    runs = _with_common_steps(group)
    start, end = max(run.steps[0] for run in runs), min(run.steps[-1] for run in runs)
    steps = x = np.linspace(start, end, POINTS)
    times = [np.interp(steps, run.steps, run.seconds) for run in runs if run.seconds is not None]
    if view.by == "seconds" and len(times) == len(runs):  # old runs have kept no times
        x = np.mean(times, 0)
    table = np.stack([np.interp(steps, run.steps, run.returns) for run in runs])
    table = _smoothed(table, round(view.smooth * POINTS)).T
    middle, low, high = interval([table], statistic)
    named = label or (runs[0].label if len(runs) == 1 else "mean")
    if short_ := len(group) - len(runs):
        named += f" (without {short_} that ended before the others had a value)"
    return Curve(named, x, middle, low, high, len(runs))


def _with_common_steps(group: Sequence[Run]) -> Sequence[Run]:
    """Return the runs of a group without those that ended before the others had a first value."""
    runs = sorted(group, key=lambda run: run.steps[-1])
    while runs[0].steps[-1] < max(run.steps[0] for run in runs):
        runs = runs[1:]
    return [run for run in group if any(run is one for one in runs)]


def _smoothed(table: np.ndarray, window: int) -> np.ndarray:
    """Means ``[R, K]`` over the last `window` values, fewer at the start."""
    if window < 2:
        return table
    total = np.cumsum(np.pad(table, ((0, 0), (1, 0))), 1)
    end = np.arange(1, table.shape[1] + 1)
    begin = np.maximum(end - window, 0)
    return (total[:, end] - total[:, begin]) / (end - begin)


@dataclass(frozen=True)
class Picture:
    """Curves with their title and axes; a notebook shows it."""

    curves: Sequence[Curve]
    title: str
    x_label: str
    y_label: str

    def _repr_svg_(self) -> str:
        return svg(self.curves, self.title, self.x_label, self.y_label)

    def __str__(self) -> str:
        return f"{text(self.curves)}\n{self.y_label}, over {self.x_label}"

    __repr__ = __str__

    def save(self, path: str | Path) -> Path:
        """Write it as .svg; as .png or .pdf with matplotlib.

        Raises:
            UsageError: another ending, or matplotlib is not installed.
            FlatoutError: it cannot be written.
        """
        path = Path(path)
        check_file(path, PICTURES, own=(".svg",))
        output_file.write(path, self.content(path.suffix))
        return path

    def content(self, suffix: str) -> bytes:
        """A file's content with this ending: ``.svg``, ``.png`` or ``.pdf``."""
        if suffix == ".svg":
            return self._repr_svg_().encode()
        with figure(8, 5) as drawn:
            self.draw(drawn.add_subplot())
            return content(drawn, suffix)

    def draw(self, axes: Any) -> None:
        """Draw it on axes of matplotlib."""
        for curve in self.curves:
            (line,) = axes.plot(curve.x, curve.mean, label=curve.name)
            if curve.runs >= FEWEST_RUNS:
                colour = line.get_color()
                axes.fill_between(curve.x, curve.low, curve.high, alpha=0.2, color=colour)
        axes.set(title=self.title, xlabel=self.x_label, ylabel=self.y_label)
        axes.legend()


def picture(runs: Sequence[Run], view: View = PLAIN) -> Picture:
    """The curves of these runs, all of one score; raises as `curves` does."""
    runs = of_one_score(runs)
    titles = dict.fromkeys(f"{run.settings['algorithm']} on {run.settings['env']}" for run in runs)
    values = " or ".join(dict.fromkeys(run.value for run in runs))
    smoothing = f", smoothed over {view.smooth:.3g} of x" if view.smooth else ""
    return Picture(curves(runs, view), ", ".join(titles), axis(view.by, values), values + smoothing)


def text(found_: Sequence[Curve], width: int = 40) -> str:
    """The curves in characters, a line each: over one axis, blank where a curve has no value."""
    low = min(float(curve.mean.min()) for curve in found_)
    high = max(float(curve.mean.max()) for curve in found_)
    start, end = min(curve.x[0] for curve in found_), max(curve.x[-1] for curve in found_)
    at, half = np.linspace(start, end, width), (end - start) / (width - 1) / 2
    lines: list[str] = []
    for curve in found_:
        there = (at >= curve.x[0] - half) & (at <= curve.x[-1] + half)
        bars = iter(blocks(np.interp(at[there], curve.x, curve.mean), low, high))
        bar = "".join(next(bars) if one else " " for one in there)
        interval = f"[{curve.low[-1]:,.1f}, {curve.high[-1]:,.1f}]"
        if curve.runs < FEWEST_RUNS:  # of one seed nothing is known about others
            interval = "[one run]" if curve.runs == 1 else "[too few runs]"
        lines.append(f"{bar}  {curve.mean[-1]:,.1f} {interval}  {curve.name}")
    return "\n".join(lines)


def readable(paths: Sequence[Path], skip: Callable[[FlatoutError], None] = lambda e: None) -> (
    list[Run]
):  # fmt: skip
    """`read` of those that can be; `skip` is told why another one cannot.

    Raises:
        FlatoutError: none can.
    """
    runs: list[Run] = []
    errors: list[FlatoutError] = []
    for path in found(paths):
        try:
            runs.append(read(path))
        except FlatoutError as error:
            errors.append(error)
    if not runs:
        raise errors[0] if errors else UsageError("there is no run.")
    for error in errors:
        skip(error)
    return runs
