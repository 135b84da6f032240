"""The output of ``flatout sweep``: a screen of all trials while they run, a table at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from flatout.errors import UsageError
from flatout.output import on_one_line, print_json, printable, say
from flatout.sweeps.sweep import DONE, FAILED, PRUNED, RUNNING, WAITING, Sweep

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from flatout.reports.ranking import Report

REDRAW_S, PLAIN_S = 1.0, 10.0
SHOWN = 24
"""Maximum rows of a table."""
BESIDE = 50
"""Characters of a row without the trial's name."""


class Screen:
    """The live display of a sweep; without a terminal it prints lines."""

    def __init__(self, sweep: Sweep, console: Console, quiet: bool) -> None:
        from rich.live import Live

        self._sweep, self._console, self._quiet = sweep, console, quiet
        self._drawn, self._noted, self._told = time.monotonic(), 0, False
        self._live = None
        if console.is_terminal and not quiet:
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()

    def note(self, text: str) -> None:
        if not self._quiet:
            line = Text(f"· {on_one_line(text)}", style="dim")
            self._console.print(line, soft_wrap=not self._console.is_terminal)

    def look(self) -> None:
        """Redraw the display if it is time; this is called often."""
        sweep, now = self._sweep, time.monotonic()
        for text in sweep.notes[self._noted :]:
            self.note(text)
        self._noted = len(sweep.notes)
        if sweep.slots.settled and not self._told and sweep.slots.each_mb:
            self._told = True
            self.note(sweep.slots.words())
        if self._quiet or now - self._drawn < (PLAIN_S if self._live is None else REDRAW_S):
            return
        self._drawn = now
        if self._live is None:
            self._console.print(_summary(sweep), highlight=False, soft_wrap=True)
            return
        from rich.console import Group

        shown = Group(_summary(sweep), _running(sweep, self._console.width))
        self._live.update(shown, refresh=True)

    def close(self) -> None:
        self._drawn = time.monotonic()
        self.look()
        if not self._told and self._sweep.slots.each_mb:
            self.note(self._sweep.slots.words())
        if self._live is not None:
            self._live.stop()


def _count(sweep: Sweep, state: str) -> int:
    return sum(one.state == state for one in sweep.states.values())


def _summary(sweep: Sweep) -> str:
    """Return the sweep's progress in one line."""
    states = list(sweep.states.values())
    rate = sum(state.rate for state in states if state.state == RUNNING)
    left = sum(max(s.trial.steps - s.steps, 0) for s in states if s.state in (WAITING, RUNNING))
    words = [f"{_count(sweep, DONE)} of {len(states)} trials done"]
    words.append(f"{_count(sweep, RUNNING)} running")
    if failed := _count(sweep, FAILED):
        words.append(f"{failed} failed")
    if pruned := _count(sweep, PRUNED):
        words.append(f"{pruned} given up")
    words.append(f"{rate:,.0f} steps/s")
    if rate:
        words.append(f"{clock(left / rate)} left")
    return "   ".join(words)


def clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _running(sweep: Sweep, width: int) -> Table:
    """Return a table of the running trials in the order of their start."""
    from rich.table import Table

    made = Table("trial", box=None, padding=(0, 1), pad_edge=False)
    room = max(width - BESIDE, 12)
    for heading in ("done", "return", "steps/s", "left", "mostly"):
        made.add_column(heading, justify="left" if heading == "mostly" else "right")
    found = [state for state in sweep.states.values() if state.state == RUNNING]
    for state in found[:SHOWN]:
        mean = "" if state.mean is None else f"{state.mean:,.1f}"
        left = max(state.trial.steps - state.steps, 0)
        name = printable(state.trial.name)
        made.add_row(
            name if len(name) <= room else f"…{name[1 - room :]}",
            f"{min(state.steps / state.trial.steps, 1.0):.0%}", mean,
            f"{state.rate:,.0f}", clock(left / state.rate) if state.rate else "", state.busy,
        )  # fmt: skip
    if len(found) > SHOWN:
        made.add_row(f"... {len(found) - SHOWN} more")
    return made


def result(
    sweep: Sweep, console: Console, as_json: bool, outs: Sequence[Path], signum: int | None
) -> int:
    """Print the result, and write it to files; return the exit code."""
    report = _report(sweep)
    if as_json:
        print_json(_json(sweep, report))
    elif report is not None:
        console.print(Text(report.as_text()), soft_wrap=True)
    if report is not None:
        for file in outs:
            report.save(file)
    failed = [state for state in sweep.states.values() if state.state == FAILED]
    for state in failed:
        say(f"{state.trial.name}: {state.error}")
    if signum is not None:
        say(f"interrupted, saved; resume with: flatout sweep --resume {sweep.path}")
        return 128 + signum
    return 1 if failed else 0


def _report(sweep: Sweep) -> Report | None:
    """Rank the groups; None if no trial is done. Failed trials are counted in the report."""
    from flatout.reports.ranking import of_groups

    done = {
        name or "as given": [
            one.path for one in states
            if one.state == DONE or (one.state == FAILED and one.path.is_dir())
        ]
        for name, states in sweep.groups.items()
        if any(state.state == DONE for state in states)
    }  # fmt: skip
    done = {name: paths for name, paths in done.items() if paths}
    try:
        return of_groups(done) if done else None
    except UsageError as error:  # no episode has ended, for example
        say(error)
        return None


def _json(sweep: Sweep, report: Report | None) -> dict[str, Any]:
    """Return the object that ``--json`` prints."""
    return {
        "run_dir": str(sweep.path), "at_once": sweep.slots.limit, "rates": sweep.slots.rates,
        "each_mb": sweep.slots.each_mb,
        "trials": {
            name: {"group": state.trial.group, "state": state.state, "score": state.score,
                   "steps": state.steps, "error": state.error}
            for name, state in sweep.states.items()
        },
        **({} if report is None else report.as_json()),
    }  # fmt: skip
