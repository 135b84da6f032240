"""Learning curves of several runs: mean returns over steps, with confidence bands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flatout.errors import FlatoutError, UsageError, writing
from flatout.fleet.members import FOLDER
from flatout.output import printable
from flatout.run.display import BLOCKS
from flatout.storage.run_folder import load_config
from flatout.storage.span_records import json_lines

POINTS, RESAMPLED = 200, 1000
RETURN = "rollout/return_mean_100"
NOT_TELLING = ("seed", "run_dir")
"""Settings in which runs of one curve may differ."""


@dataclass(frozen=True)
class Run:
    """One run's curve: steps and mean returns ``[K]``, and the settings that name it."""

    label: str
    steps: np.ndarray
    returns: np.ndarray
    settings: dict[str, object]


def read(path: Path) -> Run:
    """A run's curve from its metrics.

    Raises:
        UsageError: it is no run, or has told of no episode yet.
    """
    config = load_config(path, None)
    rows = [row for row in json_lines(path / "metrics.jsonl") if RETURN in row]
    if not rows:
        raise UsageError(f"{path} has no mean return yet: no episode has ended.")
    settings = {n: v for n, v in config.flat().items() if n not in NOT_TELLING}
    return Run(
        path.name, np.array([row["step"] for row in rows], float),
        np.array([row[RETURN] for row in rows], float), settings,
    )  # fmt: skip


def found(paths: Sequence[Path]) -> list[Path]:
    """The run folders, those of populations' members in the place of a population."""
    runs: list[Path] = []
    for path in paths:
        inside = path / FOLDER
        runs += sorted(p for p in inside.iterdir() if p.is_dir()) if inside.is_dir() else [path]
    return runs


@dataclass(frozen=True)
class Curve:
    """Runs that differ in their seeds: steps ``[K]``, their mean and its 95 % interval."""

    label: str
    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: int


def curves(runs: Sequence[Run]) -> list[Curve]:
    """One curve for each group of runs with equal settings, in the order of the first of each."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(run.settings, sort_keys=True, default=str), []).append(run)
    every = [group[0].settings for group in groups.values()]
    differing = [key for key in every[0] if any(s.get(key) != every[0][key] for s in every)]
    return [_curve(group, differing) for group in groups.values()]


def _curve(group: Sequence[Run], differing: Sequence[str]) -> Curve:
    start = max(run.steps[0] for run in group)
    end = min(run.steps[-1] for run in group)
    steps = np.linspace(start, max(end, start), POINTS)
    table = np.stack([np.interp(steps, run.steps, run.returns) for run in group])
    picks = np.random.default_rng(0).integers(len(group), size=(RESAMPLED, len(group)))
    means = table[picks].mean(1)
    low, high = np.quantile(means, (0.025, 0.975), axis=0)
    words = ", ".join(f"{key}={group[0].settings.get(key)}" for key in differing)
    label = words or (group[0].label if len(group) == 1 else "mean")
    return Curve(label, steps, table.mean(0), low, high, len(group))


def text(found_: Sequence[Curve], width: int = 40) -> str:
    """The curves in characters, a line each."""
    low = min(float(curve.mean.min()) for curve in found_)
    high = max(float(curve.mean.max()) for curve in found_)
    lines: list[str] = []
    for curve in found_:
        shown = np.interp(np.linspace(0, POINTS - 1, width), np.arange(POINTS), curve.mean)
        places = (shown - low) / max(high - low, 1e-12) * (len(BLOCKS) - 1)
        bar = "".join(BLOCKS[round(place)] for place in places)
        seeds = f" ({curve.runs} runs)" if curve.runs > 1 else ""
        lines.append(
            f"{bar}  {curve.mean[-1]:,.1f} [{curve.low[-1]:,.1f}, {curve.high[-1]:,.1f}]  "
            f"{printable(curve.label)}{seeds}"
        )
    return "\n".join(lines)


def draw(found_: Sequence[Curve], file: Path) -> None:
    """Write the curves as a picture.

    Raises:
        FlatoutError: it cannot be written.
    """
    from matplotlib.figure import Figure  # type: ignore[import-not-found]

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for curve in found_:
        seeds = f" ({curve.runs} runs)" if curve.runs > 1 else ""
        (line,) = axes.plot(curve.steps, curve.mean, label=curve.label + seeds)
        if curve.runs > 1:
            axes.fill_between(curve.steps, curve.low, curve.high, alpha=0.2, color=line.get_color())
    axes.set(xlabel="environment steps", ylabel="mean return of the last 100 episodes")
    axes.legend()
    with writing(file):
        figure.savefig(file)


def readable(paths: Sequence[Path]) -> list[Run]:
    """`read` of those that can be.

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
    return runs
