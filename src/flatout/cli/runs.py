"""`flatout runs`: a table of run folders, or a comparison of some of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from flatout.cli.flags import Word, out_files, parse, run_folder
from flatout.errors import UsageError, refuse_empty
from flatout.output import on_one_line, print_json, printable, text_table
from flatout.reports.figure import PICTURES

if TYPE_CHECKING:
    from flatout.reports.runs import Row


@dataclass(frozen=True)
class RunsArguments:
    """List the runs in a folder and below it, or compare some of them.

    `evaluation` is the mean return of a run's last evaluation (of a classifier the accuracy on the
    test set), `return` that of its last 100 training episodes. A KEY is a column or a setting.

      flatout runs --where env=CartPole-v1 --where state=done --sort return
      flatout runs --compare runs/first runs/second
    """

    usage: ClassVar[tuple[str, ...]] = (
        "[DIR] [--where KEY=VALUE] [--sort KEY]", "--compare RUN_A RUN_B [RUN ...] [--out FILE]",
    )  # fmt: skip

    paths: Annotated[tuple[str, ...], Word("DIR")] = ()
    """The folder, by default runs; with --compare the folders of two runs or more."""
    where: Annotated[tuple[str, ...], "KEY=VALUE"] = ()
    """Only runs of which this holds; may be repeated."""
    sort: Annotated[str | None, "KEY"] = None
    """Sort by this: numbers from the largest on, text from A."""
    compare: bool = False
    """Show what differs between two runs: settings, learning curves, speed, and where their time
    went; of two or more runs that did the same work on different numbers of devices also what the
    devices gain, and what eats the rest."""
    out: Annotated[tuple[str, ...], "FILE"] = ()
    """With --compare: draw what devices gain (.svg, .png or .pdf; pip install matplotlib)."""
    json: bool = False
    """Print one object, alone on stdout (a list without --compare)."""


HEADINGS = {"run": "run", "algorithm": "algorithm", "env": "env", "evaluation": "evaluation",
            "return": "training return", "steps": "steps", "steps_per_s": "steps/s",
            "verdict": "verdict", "state": "state", "parent": "parent"}  # fmt: skip
NUMBERS = ("evaluation", "return", "steps", "steps_per_s")
FRACTIONS = ("evaluation", "return")


def runs(argv: list[str]) -> int:
    """Run ``flatout runs``; return the exit code."""
    asked = parse(RunsArguments, "flatout runs", argv)
    for word in asked.paths:
        refuse_empty("RUN_DIR", word)
    if asked.compare:
        if asked.where or asked.sort is not None:
            raise UsageError("--compare names its runs: leave out --where and --sort.")
        return _compare(asked)
    if asked.out:
        raise UsageError("--out is for --compare: flatout runs --compare RUN_A RUN_B --out FILE.")
    if len(asked.paths) > 1:
        raise UsageError(
            "runs lists one folder; to compare runs: flatout runs --compare "
            f"{' '.join(map(on_one_line, asked.paths))}."
        )
    from flatout.reports.runs import chosen, rows

    root = Path(asked.paths[0] if asked.paths else "runs")
    found = rows(root)
    shown = chosen(found, asked.where, asked.sort)
    if asked.json:
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


def _compare(asked: RunsArguments) -> int:
    """Print the differences between runs and the gain of more devices; return the exit code."""
    outs = out_files(asked.out, *PICTURES)
    if len(asked.paths) < 2:
        raise UsageError(
            "--compare needs two run folders or more: flatout runs --compare RUN_A RUN_B."
        )
    folders = [run_folder(word, "--compare") for word in asked.paths]
    from flatout.cli.compare_devices import compared as on_devices

    found, scaling = dict[str, Any](), None
    if len(folders) == 2:
        from flatout.reports.compare import compared, told

        found = compared(*folders)
        if not asked.json:
            print(told(found))
    try:
        scaling = on_devices(folders)
    except UsageError:
        if len(folders) > 2 or outs:  # nothing else can be said of them
            raise
    if asked.json:
        print_json(found | {"scaling": None if scaling is None else scaling.as_json()})
    if scaling is None:
        return 0
    from rich.console import Console

    from flatout.measurements.scaling_report import draw, show

    if not asked.json:
        show(scaling, None, Console())
    for file in outs:
        draw(scaling, file)
        if not asked.json:
            print(on_one_line(str(file)))
    return 0
