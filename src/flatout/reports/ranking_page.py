"""A report as one HTML page or as a drawing: tables, learning curves and performance profiles.

The page's template and style are those of `flatout explain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

import numpy as np

from flatout.output import printable
from flatout.reports.curves import Picture, Run, View, band, of_metrics, of_one_score
from flatout.reports.figure import figure, save
from flatout.reports.ranking_tables import Line, Table, cells, title
from flatout.reports.statistics import Estimate, enough, iqm, profiled
from flatout.run.curve import AXES, Curve, axis

DRAWN = 8
"""Groups of a table that are drawn, the best of them."""
CURVES = 20
"""Runs of a group that its learning curve is of, evenly chosen."""
THRESHOLDS = 101


def page(tables: Sequence[Table], notes: Sequence[str]) -> str:
    """The report as one self-contained HTML document."""
    template = (resources.files("flatout_explain") / "report.html").read_text(encoding="utf-8")
    first = tables[0]
    headline, _, chance = first.verdict().partition(": ")
    sections = [_section(table) for table in tables]
    if notes:
        items = "".join(f"<li>{_text(note)}</li>" for note in notes)
        sections.append(f'<section><h2>Notes</h2><ul class="plain">{items}</ul></section>')
    return Template(template).substitute(
        command="flatout report", title=_text(f"flatout report: {first.lines[0].name}"),
        state="healthy", notice="", advice="",
        about=_text(f"{title(first)}: {chance or first.what}"),
        verdict=_text(headline or f"One group: {first.lines[0].name}"),
        sections="\n".join(sections),
        machine="IQM: the interquartile mean. Intervals hold 95 %, by a stratified bootstrap over "
        f"runs (Agarwal et al. 2021). Drawn: the first {DRAWN} groups, curves of at most {CURVES} "
        "runs each.",
    )  # fmt: skip


def draw(tables: Sequence[Table], path: Path) -> None:
    """Draw the pictures of all tables with matplotlib, a row for each.

    Raises:
        FlatoutError: the file cannot be written, or matplotlib fails.
    """
    rows = [pictures(table) for table in tables]
    wide = max(map(len, rows))
    with figure(6 * wide, 4 * len(rows)) as drawn:
        for number, row in enumerate(rows):
            for place, picture in enumerate(row, 1):
                picture.draw(drawn.add_subplot(len(rows), wide, number * wide + place))
        save(drawn, path)


def pictures(table: Table) -> list[Picture]:
    """Of one environment the learning curves over steps and seconds, then the profiles of the
    groups that have enough runs."""
    lines = table.lines[:DRAWN]
    made: list[Picture] = []
    if table.env is not None:
        groups = [(line, _runs(line, table.env)) for line in lines]
        shown = of_one_score([run for _, runs in groups for run in runs], table.score)
        shown = [run for run in shown if len(run.steps)]
        by_group = [(line, [run for run in shown if run.label == line.name]) for line in lines]
        for by in AXES if shown else ():
            curves = [band(runs, line.name, View(by), iqm) for line, runs in by_group if runs]
            value = shown[0].value
            made.append(Picture(curves, table.env, axis(by, value), f"IQM, {value}"))
    scores = np.concatenate([np.concatenate(line.strata()) for line in table.lines])
    thresholds = np.linspace(scores.min(), scores.max(), THRESHOLDS)
    profiles = [
        Curve(line.name, thresholds, *profiled(line.strata(), thresholds), line.runs)
        for line in lines if enough(line.strata())
    ]  # fmt: skip
    if profiles:
        heading = f"{title(table)}: profile"
        made.append(Picture(profiles, heading, "score", "share of runs above it"))
    return made


def _runs(line: Line, env: str) -> list[Run]:
    """The curves of a group's runs, labelled with its name."""
    folders = list(line.scores[env])
    chosen = np.unique(np.linspace(0, len(folders) - 1, min(len(folders), CURVES)).astype(int))
    runs: list[Run] = []
    for place in chosen:
        with suppress(OSError):
            runs.append(of_metrics(Path(folders[place]) / "metrics.jsonl", line.name, {}))
    return runs


def _section(table: Table) -> str:
    head, *rows = cells(table)
    reach = [line.iqm for line in table.lines]
    ends = [end for e in reach for end in (e.value, e.low, e.high) if end is not None]
    low, high = min(ends), max(ends)
    body = "".join(
        f"<tr>{_row('td', [*map(_text, row[:5]), _reach(one, low, high), *map(_text, row[5:])])}"
        "</tr>\n"
        for row, one in zip(rows, reach, strict=False)  # cells shows the first ones
    )
    more = len(table.lines) - len(rows)
    drawings = "".join(f"<div>{picture._repr_svg_()}</div>" for picture in pictures(table))
    return (
        f'<section><h2>{_text(title(table))}</h2><p class="soft">{_text(table.what)}</p>'
        f'<div class="wide"><table><tr>{_row("th", [*map(_text, head[:5]), "", *head[5:]])}</tr>\n'
        f"{body}</table></div>{f'<p>{more:,} more groups are not shown.</p>' if more else ''}"
        f'<p>{_text(table.verdict())}</p><div class="figures">{drawings}</div></section>'
    )


def _row(tag: str, cells_: Sequence[str]) -> str:
    return "".join(f"<{tag}>{cell}</{tag}>" for cell in cells_)


def _reach(estimate: Estimate, low: float, high: float) -> str:
    """The interval as a bar between the ends of all of them, with a stroke at the estimate."""

    def at(value: float | None) -> float:
        return 2 + 96 * ((estimate.value if value is None else value) - low) / ((high - low) or 1)

    left, right, middle = (at(v) for v in (estimate.low, estimate.high, estimate.value))
    return (
        '<svg class="reach" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect x="{left:.1f}" y="2" width="{right - left:.1f}" height="6"/>'
        f'<path d="M{middle:.1f} 0v10"/></svg>'
    )


def _text(words: str) -> str:
    return escape(printable(words))
