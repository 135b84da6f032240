"""What ``flatout fleet`` shows: one screen over all trials while they run, a table at the end."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from flatout.fleet.sweep.fleet import DONE, FAILED, RUNNING, Fleet, State
from flatout.output import printable, say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

REDRAW_S, PLAIN_S = 1.0, 10.0
SHOWN = 24
"""Most rows of a table."""


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
            self._console.print(f"· {printable(text)}", style="dim", highlight=False,
                                markup=False, soft_wrap=True)  # fmt: skip

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

        self._live.update(Group(_summary(fleet), _running(fleet)), refresh=True)

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
    left = sum(max(s.trial.steps - s.steps, 0) for s in states if s.state not in (DONE, FAILED))
    words = [f"{_count(fleet, DONE)} of {len(states)} trials done"]
    words.append(f"{_count(fleet, RUNNING)} running")
    if failed := _count(fleet, FAILED):
        words.append(f"{failed} failed")
    words.append(f"{rate:,.0f} steps/s")
    if rate:
        words.append(f"{clock(left / rate)} left")
    return "   ".join(words)


def clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _running(fleet: Fleet) -> Table:
    """The trials that run, in the order in which they began."""
    from rich.table import Table

    made = Table("trial", box=None, padding=(0, 2), pad_edge=False)
    for heading in ("done", "return", "steps/s", "left", "mostly"):
        made.add_column(heading, justify="left" if heading == "mostly" else "right")
    found = [state for state in fleet.states.values() if state.state == RUNNING]
    for state in found[:SHOWN]:
        mean = "" if state.mean is None else f"{state.mean:,.1f}"
        left = max(state.trial.steps - state.steps, 0)
        made.add_row(
            printable(state.trial.name), f"{state.steps / state.trial.steps:.0%}", mean,
            f"{state.rate:,.0f}", clock(left / state.rate) if state.rate else "", state.busy,
        )  # fmt: skip
    if len(found) > SHOWN:
        made.add_row(f"... {len(found) - SHOWN} more")
    return made


def ranked(fleet: Fleet) -> list[tuple[str, float | None, list[State]]]:
    """Groups by their objective, the best first."""
    rows: list[tuple[str, float | None, list[State]]] = []
    for name, states in fleet.groups.items():
        scores = [state.score for state in states if state.score is not None]
        rows.append((name, fleet.objective(scores) if scores else None, states))
    return sorted(rows, key=lambda row: float("inf") if row[1] is None else -row[1])


def result(fleet: Fleet, console: Console, as_json: bool, signum: int | None) -> int:
    """Print what was found; returns the exit code."""
    rows = ranked(fleet)
    if as_json:
        print(json.dumps(_json(fleet, rows)), flush=True)
    else:
        console.print(_table(rows))
    failed = [state for state in fleet.states.values() if state.state == FAILED]
    for state in failed:
        say(f"{state.trial.name}: {state.error}")
    if signum is not None:
        say(f"interrupted, saved; go on with: flatout fleet --resume {fleet.path}")
        return 128 + signum
    return 1 if failed else 0


def _table(rows: list[tuple[str, float | None, list[State]]]) -> Table:
    from rich.table import Table

    made = Table("", "configuration", box=None, padding=(0, 2), pad_edge=False)
    for heading in ("IQM", "trials", "failed", "s"):
        made.add_column(heading, justify="right")
    for rank, (name, objective, states) in enumerate(rows, 1):
        done = [state for state in states if state.state == DONE]
        failed = sum(state.state == FAILED for state in states)
        made.add_row(
            str(rank), printable(name or "as given"),
            "" if objective is None else f"{objective:,.1f}", f"{len(done)} of {len(states)}",
            str(failed or ""), f"{sum(state.seconds for state in done):,.1f}",
        )  # fmt: skip
    return made


def _json(fleet: Fleet, rows: list[tuple[str, float | None, list[State]]]) -> dict[str, Any]:
    return {
        "run_dir": str(fleet.path), "at_once": fleet.slots.limit,
        "rates": fleet.slots.rates, "each_mb": fleet.slots.each_mb,
        "groups": [
            {"name": name, "iqm": objective, "trials": {
                state.trial.name: {"state": state.state, "score": state.score,
                                   "steps": state.steps, "error": state.error}
                for state in states}}
            for name, objective, states in rows
        ],
    }  # fmt: skip
