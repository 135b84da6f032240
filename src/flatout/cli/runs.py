"""`flatout runs`, `compare`, `plot` and `report`: what run folders hold, side by side."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.cli.flags import refuse_json, take, take_all, take_file, take_switch
from flatout.errors import UsageError, refuse_empty
from flatout.output import on_one_line, print_json, printable, say, text_table
from flatout_explain.cli.parsing import existing

if TYPE_CHECKING:
    from flatout.reports.runs import Row

RUNS = """\
usage: flatout runs [DIR] [--where KEY=VALUE ...] [--sort KEY] [--json]

A table of the runs in DIR (by default runs) and below it, members of populations too. `evaluation`
is the mean return of a run's last evaluation (of a classifier the accuracy on the test set),
`return` that of its last 100 training episodes. A KEY is a column or a setting.

  --where KEY=VALUE ...  only runs of which all of these hold
  --sort KEY             numbers from the largest on, text from A
  --json                 print a list of objects, alone on stdout

  flatout runs --where env=CartPole-v1 state=done --sort return
"""

COMPARE = """\
usage: flatout compare RUN_A RUN_B [--json]

What differs between two runs: settings, learning curves, speed, and where their time went.

  --json  print one object, alone on stdout
"""

PLOT = """\
usage: flatout plot RUN ... [--by steps|seconds] [--group KEY ...] [--smooth SHARE] [--out FILE]

The learning curves of runs and populations. Runs that differ in nothing but their seeds make one
curve: their mean, with its 95 % interval (bootstrap over runs). A curve shows the evaluations
where all runs were evaluated more than once, and otherwise the last 100 training episodes.

  --by seconds       over wall time instead of steps
  --group KEY ...    one curve for each value of these settings, whatever else differs
  --smooth 0.05      average each value with those before it, over this share of the curve
  --out curves.svg   draw them (.png and .pdf need matplotlib); else in characters

  flatout plot runs/a runs/b --group learning_rate --out curves.svg
"""

REPORT = """\
usage: flatout report [RUN ...] [--group KEY ...] [--at STEPS|end] [--score return|eval]
                      [--normalize ENV=LOW,HIGH ...] [--csv|--html|--png FILE] [--json]

Which settings are better, and how sure that is: groups of finished runs that differ in nothing but
their seeds, ranked by interquartile mean, in each environment and over all of them. RUN is a run's
folder or one that holds runs (by default runs). Intervals hold 95 %.

  --group KEY ...          one group for each value of these settings, whatever else differs
  --at STEPS               compare the runs after so many steps; by default after as many as all
                           of an environment have
  --at end                 compare each at its own end
  --score eval             by the last evaluation: the default where all runs have one; otherwise
  --score return           by the last 100 training episodes
  --normalize ENV=LOW,HIGH ...  scores that count as 0 and 1 where environments are taken together
                           (random and human, say); by default the worst and the best run's here
  --csv FILE               every group of every table
  --html FILE              one page: tables, learning curves over steps and seconds, profiles
  --png FILE               the curves and profiles (pip install matplotlib)
  --json                   print one object, alone on stdout

  flatout report runs/* --group learning_rate --html report.html
"""

HEADINGS = {"run": "run", "algorithm": "algorithm", "env": "env", "evaluation": "evaluation",
            "return": "training return", "steps": "steps", "steps_per_s": "steps/s",
            "verdict": "verdict", "state": "state", "parent": "parent"}  # fmt: skip
NUMBERS = ("evaluation", "return", "steps", "steps_per_s")
FRACTIONS = ("evaluation", "return")


def _words(argv: list[str], command: str, usage: str, most: int) -> list[str] | None:
    """The words that are no flags; None where help was asked for.

    Raises:
        UsageError: an unknown flag, an empty word, or too many words.
    """
    if any(word in argv for word in ("-h", "--help")):
        print(usage, end="")
        return None
    flags = [word for word in argv if word.startswith("-")]
    if flags:
        raise UsageError(f"{command} knows no {flags[0]}; see flatout {command} --help.")
    for word in argv:
        refuse_empty(f"{command}: RUN_DIR", word)
    if len(argv) > most:
        raise UsageError(f"{command}: {argv[most]!r} is too much; see flatout {command} --help.")
    return argv


def runs(argv: list[str]) -> int:
    """Run ``flatout runs``; returns the exit code."""
    where, rest = take_all(argv, "--where")
    sort, rest = take(rest, "--sort")
    as_json, rest = take_switch(rest, "--json")
    words = _words(rest, "runs", RUNS, 1)
    if words is None:
        return 0
    from flatout.reports.runs import chosen, rows

    root = Path(words[0] if words else "runs")
    found = rows(root)
    shown = chosen(found, where, sort)
    if as_json:
        print_json([row.columns() for row in shown])
    elif shown:
        _table(shown)
    else:
        print(f"{on_one_line(str(root))}: " + ("no run fulfils that" if found else "no runs"))
    return 0


def _table(shown: list[Row]) -> None:
    columns = [row.columns() for row in shown]
    names = [name for name in HEADINGS if any(row[name] is not None for row in columns)]
    cells = [[HEADINGS[name] for name in names]]
    cells += [[_cell(name, row[name]) for name in names] for row in columns]
    left = [place for place, name in enumerate(names) if name not in NUMBERS]
    print("\n".join(text_table(cells, left)))


def _cell(name: str, value: Any) -> str:
    if name in NUMBERS:
        return "" if value is None else f"{value:,.{2 if name in FRACTIONS else 0}f}"
    return " ".join(printable(value or "").split())


def compare(argv: list[str]) -> int:
    """Run ``flatout compare``; returns the exit code."""
    as_json, rest = take_switch(argv, "--json")
    words = _words(rest, "compare", COMPARE, 2)
    if words is None:
        return 0
    if len(words) != 2:
        raise UsageError("compare needs two run folders: flatout compare RUN_A RUN_B.")
    one, other = map(existing, words)
    from flatout.reports.compare import compared, told

    found = compared(one, other)
    if as_json:
        print_json(found)
    else:
        print(told(found))
    return 0


def plot(argv: list[str]) -> int:
    """Run ``flatout plot``; returns the exit code."""
    refuse_json(
        argv,
        "plot has no --json: it draws curves in characters, or into --out FILE; flatout runs "
        "--json and flatout compare RUN_A RUN_B --json print numbers.",
    )
    file, rest = take_file(argv, "--out")
    by, rest = take(rest, "--by")
    smooth, rest = take(rest, "--smooth")
    group, rest = take_all(rest, "--group")
    words = _words(rest, "plot", PLOT, len(rest))
    if words is None:
        return 0
    if not words:
        raise UsageError("plot needs the folder of a run or a population: flatout plot RUN ...")
    if not any(map(os.path.lexists, words)):
        existing(words[0])
    from flatout.reports.curves import View, drawable, picture, readable

    if file is not None:
        drawable(Path(file))
    try:
        share = float(smooth or 0)
    except ValueError:
        raise UsageError(f"--smooth {smooth} is no number, such as 0.05.") from None
    view = View(by or "steps", share, _keys(group))
    made = picture(readable([Path(word) for word in words], say), view)
    if file is None:
        print(made)
    else:
        made.save(file)
    return 0


def _keys(words: list[str]) -> tuple[str, ...]:
    return tuple(key.replace("-", "_") for word in words for key in word.split(","))


def report(argv: list[str]) -> int:
    """Run ``flatout report``; returns the exit code."""
    rest, files = argv, dict[str, str | None]()
    for kind in ("csv", "html", "png"):
        files[kind], rest = take_file(rest, f"--{kind}")
    at, rest = take(rest, "--at")
    score, rest = take(rest, "--score")
    group, rest = take_all(rest, "--group")
    scales, rest = take_all(rest, "--normalize")
    as_json, rest = take_switch(rest, "--json")
    words = _words(rest, "report", REPORT, len(rest))
    if words is None:
        return 0
    from flatout.reports.ranking import Asked, of_folders
    from flatout.reports.ranking_tables import writable

    chosen = {kind: Path(file) for kind, file in files.items() if file is not None}
    for kind, file in chosen.items():
        if file.suffix != f".{kind}":
            raise UsageError(f"--{kind} {file}: name a file that ends in .{kind}.")
        writable(file)
    steps: int | str | None = at
    with suppress(ValueError, OverflowError):
        steps = at and int(float(at))
    asked = Asked(steps, score, dict(map(_scale, scales)))
    found = of_folders([Path(word) for word in words or ["runs"]], _keys(group), asked)
    if as_json:
        print_json(found.as_json())
    else:
        print(found)
    for file in chosen.values():
        found.save(file)
    return 0


def _scale(word: str) -> tuple[str, tuple[float, float]]:
    env, _, ends = word.rpartition("=")
    try:
        low, high = map(float, ends.split(","))
    except ValueError:
        raise UsageError(f"--normalize {word}: write ENV=LOW,HIGH, as CartPole-v1=20,500.") from (
            None
        )
    return env, (low, high)
