"""Comparison of runs in Python: `flatout.plot` and `flatout.report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from flatout.api import Agent
from flatout.api.arguments import one_or_several, path_argument, texts, whole_number
from flatout.config.values import Range
from flatout.errors import UsageError, short
from flatout.output import say
from flatout.reports.curves import Picture, Run, View, picture, readable
from flatout.reports.curves import found as folders
from flatout.reports.ranking import Asked, Report, of_folders, of_groups


def plot(
    *runs: str | Path | Agent, by: str = "steps", smooth: float = 0.0, group: Sequence[str] = (),
    out: str | Path | None = None,
) -> Picture:  # fmt: skip
    """Plot the learning curves of run folders, populations' folders and agents.

    Runs that differ in nothing but their seeds make one curve: their mean with its 95 % interval.
    It shows their evaluations where all runs have several, and otherwise their training episodes.

    Args:
        by: ``"steps"`` or ``"seconds"``.
        smooth: share of a curve over which each value is averaged with those before it.
        group: settings with one curve for each of their values, whatever else differs.
        out: an .svg file to write (.png and .pdf need matplotlib).

    Returns:
        The picture: a notebook shows it, `print` writes it in characters, `save` writes a file.

    Raises:
        UsageError: nothing can be plotted, or an argument has an impossible value.
    """
    wrong = [run for run in runs if not isinstance(run, str | Path | Agent)]
    if wrong or not runs:
        raise UsageError(
            "plot takes run folders and agents: flatout.plot(RUN_DIR, RUN_DIR)"
            + (f", not {short(wrong[0])}." if wrong else ".")
        )
    view = View(by, smooth, texts("group", group))
    found, seen = list[Run](), set[Path]()  # a folder that is named twice is one run
    for run in runs:
        if isinstance(run, Agent):
            found.append(run.curve())
        elif new := [one for one in folders([path_argument("runs", run)]) if one not in seen]:
            found += readable(new, lambda error: say(str(error)))
            seen.update(new)
    made = picture(found, view)
    if out is not None:
        made.save(path_argument("out", out))
    return made


def report(
    *runs: str | Path | Mapping[str, Sequence[str | Path]], group: Sequence[str] = (),
    at: int | str | None = None, score: str | None = None,
    normalize: Mapping[str, tuple[float, float]] | None = None, out: str | Path | None = None,
) -> Report:  # fmt: skip
    """Rank settings by the results of finished runs, with the uncertainty over their seeds.

    Args:
        runs: run folders, or folders that hold runs; or one dictionary of named groups of them.
        group: settings with one group of runs for each of their values, whatever else differs.
        at: after how many steps runs are compared, or ``"end"``; by default after as many as all
            runs of an environment have.
        score: ``"eval"``, the mean of the last evaluation, or ``"return"``, that of the last 100
            training episodes; by default the first that all runs of an environment have.
        normalize: for every environment the scores that count as 0 and 1 where environments are
            taken together; by default those of its worst and its best run.
        out: a .csv, .json, .html or .png file to write.

    Returns:
        The report: a notebook shows it, `print` writes its tables, `save` writes a file.

    Raises:
        UsageError: no run is finished, or an argument has an impossible value.
    """
    steps = at if at is None or isinstance(at, str) else whole_number("at", at, Range(1))
    asked = Asked(steps, score, normalize or {})
    keys = texts("group", group)
    if len(runs) == 1 and isinstance(runs[0], Mapping):
        if keys:
            raise UsageError("report: groups have names already; leave group= out.")
        groups = {
            name: [path_argument("runs", run) for run in one_or_several(given)]
            for name, given in runs[0].items()
        }
        made = of_groups(groups, asked)
    else:
        folders = [path_argument("runs", run) for run in runs if not isinstance(run, Mapping)]
        if len(folders) < max(len(runs), 1):
            raise UsageError("report needs folders, or one dictionary of groups: report(RUN_DIR).")
        made = of_folders(folders, keys, asked)
    if out is not None:
        made.save(path_argument("out", out))
    return made
