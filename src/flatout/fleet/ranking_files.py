"""Groups of runs in the order of their scores: tables as values, in text and for CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flatout.errors import UsageError
from flatout.fleet.statistics import Estimate
from flatout.output import printable

SHOWN = 30
"""Rows of a table in text; of more, only files have all. So many are compared with the first."""
TOO_FEW = "too few runs"
HEADS = ("group", "runs", "IQM", "95 % interval", "median", "mean", "P(1 is better)", "steps/s",
         "verdict")  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One group.

    Attributes:
        name: what sets it apart.
        scores: by environment and run folder.
        asked: how many runs it has, those included that do not count.
        beaten: the probability that a run of the table's first group scores more than one of this;
            None of the first itself.
        steps_per_s: the runs' median; None over several environments.
        verdict: what most runs were held up by.
    """

    name: str
    scores: dict[str, dict[str, float]]
    asked: int
    iqm: Estimate
    median: Estimate
    mean: Estimate
    beaten: Estimate | None
    steps_per_s: float | None
    verdict: str | None

    @property
    def runs(self) -> int:
        """How many count."""
        return sum(map(len, self.scores.values()))

    def strata(self) -> list[np.ndarray]:
        """The scores ``[n]`` of each environment."""
        return [np.array(list(scores.values())) for scores in self.scores.values()]


@dataclass(frozen=True)
class Table:
    """Groups in one environment, or over all of them, the best interquartile mean first.

    Attributes:
        env: its name; None over all.
        score: by which runs are compared, a key of `ranking.SCORES`; over several environments
            those of their tables, joined by commas.
        what: the score, and after how many steps, in words.
    """

    env: str | None
    score: str
    what: str
    lines: list[Line]

    def verdict(self) -> str:
        """Whether the first group is better than the second, in a sentence; empty of one group."""
        if len(self.lines) < 2:
            return ""
        first, second = self.lines[:2]
        chance = second.beaten
        assert chance is not None
        if chance.low is None:
            if 1 in (first.runs, second.runs):
                return f"{first.name} may be ahead by chance: one run tells nothing of other seeds."
            return (
                f"{first.name} and {second.name} have too few runs to be told apart: "
                f"{first.runs} and {second.runs}."
            )
        words = (
            f"a run of the first scores more than one of the second with probability "
            f"{chance.value:.2f} [{chance.low:.2f}, {chance.high:.2f}]"
        )
        if chance.low > 0.5:
            return f"{first.name} is better than {second.name}: {words}."
        return f"{first.name} and {second.name} cannot be told apart: {words}."


def text(tables: Sequence[Table], notes: Sequence[str]) -> str:
    """The tables, what they show, and notes."""
    parts: list[str] = []
    for table in tables:
        parts += [f"{title(table)}: {table.what}", *_lined(cells(table))]
        if (more := len(table.lines) - SHOWN) > 0:
            parts.append(f"... {more:,} more: --csv FILE has all")
        parts += ["", words, ""] if (words := table.verdict()) else [""]
    parts += [f"· {note}" for note in notes]
    return "\n".join(printable(" ".join(part.split("\n"))) for part in parts).rstrip()


def title(table: Table) -> str:
    """Which environment a table is of."""
    return table.env or f"All {len(table.lines[0].scores)} environments"


def cells(table: Table) -> list[list[str]]:
    """A row of words for its heads, and one for each line, the first `SHOWN` of them."""
    digits = digits_of(table.lines)
    rows = [["", *HEADS]]
    for place, line in enumerate(table.lines[:SHOWN], 1):
        runs = f"{line.runs}" if line.runs == line.asked else f"{line.runs} of {line.asked}"
        rate = "" if line.steps_per_s is None else f"{line.steps_per_s:,.0f}"
        one = "one run" if line.runs == 1 else TOO_FEW
        beaten = ""
        if line.beaten is not None:
            beaten = f"{line.beaten.value:.2f} {between(line.beaten, 2) or f'({TOO_FEW})'}"
        rows.append([
            str(place), line.name, runs, f"{line.iqm.value:,.{digits}f}",
            between(line.iqm, digits) or one,
            *(f"{one.value:,.{digits}f}" for one in (line.median, line.mean)), beaten, rate,
            line.verdict or "",
        ])  # fmt: skip
    return rows


def between(estimate: Estimate, digits: int) -> str:
    """The interval in words; empty where there are too few runs for one."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"[{estimate.low:,.{digits}f}, {estimate.high:,.{digits}f}]"


def digits_of(lines: Sequence[Line]) -> int:
    most = max(abs(line.mean.value) for line in lines)
    return 3 if most < 10 else 2 if most < 100 else 1


def _lined(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(
        cell.ljust(width) if column in (1, 4, 7, 9) else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip() for row in rows]  # fmt: skip


def writable(path: Path) -> None:
    """Refuse a file that a report's `save` cannot write, before anything is done."""
    if path.suffix not in (".csv", ".json", ".html", ".png"):
        raise UsageError(f"{path}: a report is a .csv, .json, .html or .png file.")
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{path} is no file in an existing folder.")


def flat(tables: Sequence[Table]) -> list[list[object]]:
    """Every group of every table as a row; of many tables, with their environment."""
    names = ("iqm", "median", "mean", "first_is_better")
    bounds = [f"{name}{end}" for name in names for end in ("", "_low", "_high")]
    rows: list[list[object]] = [
        ["environment", "place", "group", "runs", "of", *bounds, "steps_per_s", "verdict"]
    ]
    for table in tables:
        for place, line in enumerate(table.lines, 1):
            found = (line.iqm, line.median, line.mean, line.beaten)
            numbers = [v for e in found for v in ((e.value, e.low, e.high) if e else [None] * 3)]
            rows.append([
                table.env or "all", place, printable(line.name), line.runs, line.asked, *numbers,
                line.steps_per_s, line.verdict,
            ])  # fmt: skip
    return rows
