"""Output in notebooks: a run while it trains, and an agent."""

from __future__ import annotations

import sys
import time
from collections import deque
from html import escape
from typing import Any

import numpy as np

from flatout.config.schema import TrainConfig
from flatout.output import on_one_line, printable, tolerant
from flatout.run.card import reached, verdict
from flatout.run.curve import VALUES, Points, drawing
from flatout.run.progress import Display, Progress, Track

REDRAW_S = 0.5


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def display_of(config: TrainConfig) -> Display:
    """Return the display of a run that a program or a notebook started."""
    if in_notebook():
        return NotebookDisplay(config)
    from rich.console import Console

    from flatout.run.display import LiveDisplay

    return LiveDisplay(config, Console(file=tolerant(sys.stdout)))


class NotebookDisplay(Display):
    """A bar, the figures that matter and the curve, in the output of the cell."""

    shows = True

    def __init__(self, config: TrainConfig) -> None:
        from IPython.display import HTML, display  # type: ignore[import-not-found]

        self._config, self._html = config, HTML
        self._title = f"{config.algorithm} on {config.env.env}"
        self._track, self._drawn, self._notes = Track(), 0.0, deque[str](maxlen=3)
        self._last: tuple[Progress, float] | None = None
        self._load: tuple[float, str] = (0.0, "")
        self._handle: Any = display(HTML(""), display_id=True)

    def note(self, text: str) -> None:
        self._notes.append(text)
        self._draw()

    def update(self, progress: Progress, row: dict[str, float], wall_s: float) -> None:
        self._last = progress, wall_s
        if time.monotonic() - self._drawn < REDRAW_S:
            return
        if progress.returns:
            mean = float(np.mean(progress.returns))
            self._track.add(progress.steps, {"time/wall_s": wall_s, next(iter(VALUES)): mean})
        self._draw()

    def load(self, steps_per_s: float, machine: str) -> None:
        self._load = steps_per_s, machine

    def close(self) -> None:
        if self._last is not None:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        parts: list[str] = []
        if self._last is not None:
            progress, wall = self._last
            total, rate = self._config.run.steps, self._load[0]
            done = min(progress.steps, total)
            parts.append(f'<progress value="{done}" max="{total}" style="width:40em"></progress>')
            facts = [f"{progress.steps:,} of {total:,} steps", f"{wall:.0f} s"]
            if rate:
                facts.append(f"{rate:,.0f} steps/s")
            if progress.returns:
                facts.append(f"return {np.mean(progress.returns):,.1f}")
            parts.append("<br>" + escape(printable("   ".join([*facts, self._load[1]]))))
        parts += [f"<br><small>{escape(on_one_line(note))}</small>" for note in self._notes]
        if len(self._track.points[0]) > 1:
            parts.append("<br>" + drawing(self._title, self._track.points))
        self._handle.update(self._html("".join(parts)))


def page(
    title: str, summary: dict[str, Any], loaded: bool, points: Points | None, values: str
) -> str:
    """Return an agent as HTML; every text is escaped.

    Args:
        summary: of its last run; empty before one.
        loaded: it was loaded, if it has not learned.
        points: its learning curve, if it has learned.
        values: what its values are.
    """
    facts = {"state": "loaded; call learn to continue" if loaded else "nothing learned yet"}
    if summary:
        facts = {
            "result" if "test_accuracy" in summary else "return": reached(summary),
            "verdict": verdict(summary),
            "steps": f"{summary['steps']:,}, {summary['steps_per_s']:,.0f} a second",
            "run folder": summary["run_dir"] or "",
        }  # fmt: skip
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(printable(words))}</td></tr>"
        for name, words in facts.items() if words
    )  # fmt: skip
    shown = "" if points is None or not len(points[0]) else drawing(title, points, values)
    return f"<div><b>{escape(printable(title))}</b><table>{rows}</table>{shown}</div>"
