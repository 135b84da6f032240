"""The output of ``flatout sweep``: a screen of all trials while they run, a table at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from flatout.errors import UsageError
from flatout.output import on_one_line, print_json, printable, say, shell_word
from flatout.run.screen import Screen
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


class SweepScreen:
    """The live display of a sweep; without a terminal it prints lines."""

    def __init__(self, sweep: Sweep, console: Console, quiet: bool) -> None:
        self._sweep, self._console = sweep, console
        self._screen = Screen(console, REDRAW_S, PLAIN_S, quiet=quiet)
        self._noted, self._told = 0, False
        self.note = self._screen.note

    def look(self, final: bool = False) -> None:
        """Redraw the display if it is time; this is called often. `final` prints sentences only."""
        sweep, slots = self._sweep, self._sweep.slots
        for text in sweep.notes[self._noted :]:
            self.note(text)
        self._noted = len(sweep.notes)
        if (slots.settled or final) and not self._told and slots.each_mb:
            self._told = True
            self.note(slots.words())
        if final or not self._screen.due():
            return
        if not self._screen.live:
            self._screen.draw(_summary(sweep))
            return
        from rich.console import Group

        self._screen.draw(Group(_summary(sweep), _running(sweep, self._console.width)))

    def close(self) -> None:
        self.look(final=True)
        self._screen.close()


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
        console.print(Text(str(report)), soft_wrap=True)
    if report is not None:
        for file in outs:
            report.save(file)
            if not as_json:
                console.print(Text(on_one_line(str(file))), soft_wrap=True)
        if not as_json:
            place = shell_word(sweep.path)
            commands = f"NEXT     flatout runs {place}\n         flatout report --curves {place}"
            console.print(Text(commands), soft_wrap=True)
    failed = [state for state in sweep.states.values() if state.state == FAILED]
    for state in failed:
        say(f"{state.trial.name}: {state.error}")
    if signum is not None:
        say(f"interrupted, saved; resume with: flatout sweep --resume {shell_word(sweep.path)}")
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
