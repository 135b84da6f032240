"""The output of ``flatout fleet``: a screen of all trials while they run, a table at the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.text import Text

from flatout.errors import UsageError
from flatout.output import on_one_line, print_json, printable, say
from flatout.sweeps.fleet import DONE, FAILED, PRUNED, RUNNING, WAITING, Fleet

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from flatout.reports.ranking import Report

REDRAW_S, PLAIN_S = 1.0, 10.0
SHOWN = 24
"""Most rows of a table."""
BESIDE = 50
"""Characters of a row beside the trial's name."""


class Screen:
    """The fleet while it runs; lines where there is no terminal."""

    def __init__(self, fleet: Fleet, console: Console, quiet: bool) -> None:
        from rich.live import Live

        self._fleet, self._console, self._quiet = fleet, console, quiet
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
        """Called often; draws seldom."""
        fleet, now = self._fleet, time.monotonic()
        for text in fleet.notes[self._noted :]:
            self.note(text)
        self._noted = len(fleet.notes)
        if fleet.slots.settled and not self._told and fleet.slots.each_mb:
            self._told = True
            self.note(fleet.slots.words())
        if self._quiet or now - self._drawn < (PLAIN_S if self._live is None else REDRAW_S):
            return
        self._drawn = now
        if self._live is None:
            self._console.print(_summary(fleet), highlight=False, soft_wrap=True)
            return
        from rich.console import Group

        shown = Group(_summary(fleet), _running(fleet, self._console.width))
        self._live.update(shown, refresh=True)

    def close(self) -> None:
        self._drawn = time.monotonic()
        self.look()
        if not self._told and self._fleet.slots.each_mb:
            self.note(self._fleet.slots.words())
        if self._live is not None:
            self._live.stop()


def _count(fleet: Fleet, state: str) -> int:
    return sum(one.state == state for one in fleet.states.values())


def _summary(fleet: Fleet) -> str:
    """Where all of it stands, in a line."""
    states = list(fleet.states.values())
    rate = sum(state.rate for state in states if state.state == RUNNING)
    left = sum(max(s.trial.steps - s.steps, 0) for s in states if s.state in (WAITING, RUNNING))
    words = [f"{_count(fleet, DONE)} of {len(states)} trials done"]
    words.append(f"{_count(fleet, RUNNING)} running")
    if failed := _count(fleet, FAILED):
        words.append(f"{failed} failed")
    if pruned := _count(fleet, PRUNED):
        words.append(f"{pruned} given up")
    words.append(f"{rate:,.0f} steps/s")
    if rate:
        words.append(f"{clock(left / rate)} left")
    return "   ".join(words)


def clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _running(fleet: Fleet, width: int) -> Table:
    """The trials that run, in the order in which they began; of long names the end is shown."""
    from rich.table import Table

    made = Table("trial", box=None, padding=(0, 1), pad_edge=False)
    room = max(width - BESIDE, 12)
    for heading in ("done", "return", "steps/s", "left", "mostly"):
        made.add_column(heading, justify="left" if heading == "mostly" else "right")
    found = [state for state in fleet.states.values() if state.state == RUNNING]
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
    fleet: Fleet, console: Console, as_json: bool, html: str | None, signum: int | None
) -> int:
    """Print what was found, and write its page; returns the exit code."""
    report = _report(fleet)
    if as_json:
        print_json(_json(fleet, report))
    elif report is not None:
        console.print(Text(report.as_text()), soft_wrap=True)
    if html is not None and report is not None:
        report.save(html)
    failed = [state for state in fleet.states.values() if state.state == FAILED]
    for state in failed:
        say(f"{state.trial.name}: {state.error}")
    if signum is not None:
        say(f"interrupted, saved; go on with: flatout fleet --resume {fleet.path}")
        return 128 + signum
    return 1 if failed else 0


def _report(fleet: Fleet) -> Report | None:
    """The groups, ranked; None where no trial is done. Failed trials are counted, not hidden."""
    from flatout.reports.ranking import of_groups

    done = {
        name or "as given": [
            one.path for one in states
            if one.state == DONE or (one.state == FAILED and one.path.is_dir())
        ]
        for name, states in fleet.groups.items()
        if any(state.state == DONE for state in states)
    }  # fmt: skip
    done = {name: paths for name, paths in done.items() if paths}
    try:
        return of_groups(done) if done else None
    except UsageError as error:  # no episode has ended, for example
        say(error)
        return None


def _json(fleet: Fleet, report: Report | None) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    return {
        "run_dir": str(fleet.path), "at_once": fleet.slots.limit, "rates": fleet.slots.rates,
        "each_mb": fleet.slots.each_mb,
        "trials": {
            name: {"group": state.trial.group, "state": state.state, "score": state.score,
                   "steps": state.steps, "error": state.error}
            for name, state in fleet.states.items()
        },
        **({} if report is None else report.as_json()),
    }  # fmt: skip
