"""A report in text, and as files."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

from flatout.errors import UsageError, writing
from flatout.fleet.ranking import SHOWN, Line, Report, Table
from flatout.fleet.statistics import Estimate
from flatout.output import printable

HEADS = ("group", "runs", "IQM", "95 % interval", "median", "mean", "P(1 is better)", "steps/s",
         "held up by")  # fmt: skip


def text(report: Report) -> str:
    """The tables, what they show, and notes."""
    parts: list[str] = []
    for table in report.tables:
        parts += [f"{title(table)}: {table.what}", *_lined(cells(table)), ""]
        if more := len(table.lines) - SHOWN:
            parts.insert(-1, f"... {more:,} more: --csv FILE has all") if more > 0 else None
        parts += [words, ""] if (words := table.verdict()) else []
    parts += [f"· {note}" for note in report.notes]
    return printable("\n".join(parts).rstrip())


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
        beaten = "" if line.beaten is None else f"{line.beaten.value:.2f} {between(line.beaten, 2)}"
        rows.append([
            str(place), line.name, runs, f"{line.iqm.value:,.{digits}f}", between(line.iqm, digits),
            *(f"{one.value:,.{digits}f}" for one in (line.median, line.mean)), beaten, rate,
            line.verdict or "",
        ])  # fmt: skip
    return rows


def between(estimate: Estimate, digits: int) -> str:
    """The interval in words; one run has none."""
    if estimate.low is None or estimate.high is None:
        return "one run"
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
    """Refuse a file that `save` cannot write, before anything is done."""
    if path.suffix not in (".csv", ".json", ".html", ".png"):
        raise UsageError(f"{path}: a report is a .csv, .json, .html or .png file.")
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{path} is no file in an existing folder.")


def save(report: Report, path: Path) -> Path:
    """See `Report.save`."""
    writable(path)
    if path.suffix == ".png":
        from flatout.fleet.curves import drawable

        drawable(path)
    with writing(path):
        if path.suffix == ".csv":
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(_flat(report))
        elif path.suffix == ".json":
            path.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
        else:
            from flatout.fleet import ranking_page

            if path.suffix == ".html":
                path.write_text(ranking_page.page(report), encoding="utf-8")
            else:
                ranking_page.draw(report, path)
    return path


def _flat(report: Report) -> list[list[object]]:
    """Every group of every table as a row; of many tables, with their environment."""
    names = ("iqm", "median", "mean", "first_is_better")
    bounds = [f"{name}{end}" for name in names for end in ("", "_low", "_high")]
    rows: list[list[object]] = [
        ["environment", "place", "group", "runs", "of", *bounds, "steps_per_s", "held_up_by"]
    ]
    for table in report.tables:
        for place, line in enumerate(table.lines, 1):
            found = (line.iqm, line.median, line.mean, line.beaten)
            numbers = [v for e in found for v in ((e.value, e.low, e.high) if e else [None] * 3)]
            rows.append([
                table.env or "all", place, printable(line.name), line.runs, line.asked, *numbers,
                line.steps_per_s, line.verdict,
            ])  # fmt: skip
    return rows
