"""`flatout report`: settings ranked over seeds, or the learning curves of runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from flatout.cli.flags import Word, out_files, parse
from flatout.errors import UsageError, refuse_empty
from flatout.output import on_one_line, print_json, say
from flatout.reports.figure import PICTURES
from flatout_explain.cli.parsing import existing


@dataclass(frozen=True)
class ReportArguments:
    """Say which settings are better, and how sure that is; or show learning curves.

    Groups of finished runs that differ in nothing but their seeds are ranked by interquartile mean,
    in each environment and over all of them. Intervals hold 95 %.

    With --curves, runs that differ in nothing but their seeds make one curve: their mean, with its
    95 % interval (bootstrap over runs). A curve shows the evaluations where all runs were evaluated
    more than once, and otherwise the last 100 training episodes.

      flatout report runs/* --group learning_rate --out report.html
      flatout report --curves runs/a runs/b --group learning_rate --out curves.svg
    """

    usage: ClassVar[tuple[str, ...]] = (
        "[RUN ...] [--out FILE]",
        "--curves [RUN ...] [--out FILE]",
    )

    paths: Annotated[tuple[str, ...], Word("RUN")] = ()
    """Folders of runs, or folders that hold runs; by default runs."""
    group: Annotated[tuple[str, ...], "KEY"] = ()
    """One group for each value of this setting, whatever else differs; several as KEY,KEY."""
    out: Annotated[tuple[str, ...], "FILE"] = ()
    """Write it: .csv (every group of every table), .html (one page: tables, learning curves over
    steps and seconds, profiles), .json, or .png (the curves and profiles; pip install matplotlib);
    with --curves .svg, .png or .pdf. May be repeated."""
    at: Annotated[str | None, "STEPS|end"] = None
    """Compare the runs after this many steps, or each at its own end; by default after as many as
    all of an environment have."""
    score: Annotated[str | None, "return|eval"] = None
    """eval: by the last evaluation, the default where all runs have one; return: by the last 100
    training episodes."""
    normalize: Annotated[tuple[str, ...], "ENV=LOW,HIGH"] = ()
    """Scores that count as 0 and 1 where environments are taken together (random and human, say);
    by default the worst and the best run's here. May be repeated."""
    curves: bool = False
    """Show learning curves: in characters, or in a picture with --out."""
    by: Annotated[str, "steps|seconds"] = "steps"
    """With --curves: what they run over."""
    smooth: Annotated[float, "SHARE"] = 0.0
    """With --curves: average each value with those before it, over this share of the curve, such as
    0.05."""
    json: bool = False
    """Print one object, alone on stdout."""


def report(argv: list[str]) -> int:
    """Run ``flatout report``; return the exit code."""
    asked = parse(ReportArguments, "flatout report", argv)
    for word in asked.paths:
        refuse_empty("RUN_DIR", word)
    if asked.curves:
        return _curves(asked)
    for flag, given in (("--by", asked.by != "steps"), ("--smooth", asked.smooth)):
        if given:
            raise UsageError(f"{flag} is for curves: flatout report --curves RUN {flag} VALUE.")
    from flatout.reports.ranking import FILES, Asked, of_folders

    outs = out_files(asked.out, *FILES)
    steps: int | str | None = asked.at
    with suppress(ValueError, OverflowError):
        steps = asked.at and int(float(asked.at))
    chosen = Asked(steps, asked.score, dict(map(_scale, asked.normalize)))
    paths = [Path(word) for word in asked.paths or ("runs",)]
    found = of_folders(paths, _keys(asked.group), chosen)
    if asked.json:
        print_json(found.as_json())
    else:
        print(found)
    for file in outs:
        found.save(file)
        if not asked.json:
            print(on_one_line(str(file)))
    return 0


def _curves(asked: ReportArguments) -> int:
    """Run ``flatout report --curves``; return the exit code."""
    if asked.json:
        raise UsageError(
            "--curves has no --json: it draws curves in characters, or into --out FILE; flatout "
            "runs --json and flatout runs --compare RUN_A RUN_B --json print numbers."
        )
    for flag in ("at", "score", "normalize"):
        if getattr(asked, flag):
            raise UsageError(f"--{flag} is for the table: leave it out, or --curves.")
    outs = out_files(asked.out, *PICTURES, own=(".svg",))
    words = asked.paths or ("runs",)
    if not any(map(os.path.lexists, words)):
        existing(words[0])
    from flatout.reports.curves import View, picture, readable

    view = View(asked.by, asked.smooth, _keys(asked.group))
    made = picture(readable([Path(word) for word in words], say), view)
    if not outs:
        print(made)
    for file in outs:
        made.save(file)
        print(on_one_line(str(file)))
    return 0


def _keys(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(key.replace("-", "_") for word in words for key in word.split(","))


def _scale(word: str) -> tuple[str, tuple[float, float]]:
    env, _, ends = word.rpartition("=")
    try:
        low, high = map(float, ends.split(","))
    except ValueError:
        raise UsageError(f"--normalize {word}: write ENV=LOW,HIGH, as CartPole-v1=20,500.") from (
            None
        )
    return env, (low, high)
