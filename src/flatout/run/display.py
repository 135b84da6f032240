"""The live display and the closing report."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console, Group
from rich.markup import escape
from rich.progress import (
    BarColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.table import Column, Table
from rich.text import Text

from flatout.config.schema import TrainConfig
from flatout.explain.collecting import COMPARE
from flatout.output import on_one_line, printable, trouble
from flatout.run.card import accuracy_words, verdict
from flatout.run.curve import blocks
from flatout.run.progress import Display, Progress
from flatout.run.screen import Screen
from flatout.run.summary import flow_words, next_commands, next_step, phase_words
from flatout_explain.causes import HEALTHY
from flatout_explain.diagnosis import MeasuredGain
from flatout_explain.report import duration, gain_words, percent, setting_words

CURVE = 60
"""Values of the curve that the display shows, one each time it is drawn."""
WIDE = 60
"""Columns of a terminal from which on the time that is left stands next to the time so far."""
INDENT = 9
"""Width of the report's labels."""
MOST_ROWS, BAR, SHORTEST = 5, 40, 5
"""Rows of the report's table of the time, and the length of a bar for all of it, at most and at
least; without room for the shortest one there is none."""
REDRAW_S = 0.25
PLAIN_S = 5.0

SHOWN = (
    "policy_loss", "value_loss", "loss", "accuracy", "q_max", "actor_loss", "critic_loss",
    "epsilon", "ent_coef", "replay_fill",
)  # fmt: skip
"""The metrics that the live display shows, as far as the algorithm has them."""


class LiveDisplay(Display):
    """A progress bar with the figures that matter; plain lines where there is no terminal."""

    shows = True

    def __init__(self, config: TrainConfig, console: Console) -> None:
        self._config = config
        self._console = console
        self._screen = Screen(console, REDRAW_S, PLAIN_S, stays=True, at_once=True)
        self._curve = deque[float](maxlen=CURVE)
        self._curve_step = -1
        self._last: tuple[Progress, dict[str, float]] | None = None
        self._load: tuple[float, str] | None = None
        wide = console.width >= WIDE
        left = (TextColumn("left"), TimeRemainingColumn()) if wide else ()
        self._bar = Bar(
            TextColumn("[bold]{task.description}"), BarColumn(bar_width=None),
            TaskProgressColumn(), TimeElapsedColumn(), *left, console=console, expand=True,
        )  # fmt: skip
        title = printable(f"{config.algorithm} {config.env.env}")
        room = console.width - (38 if wide else 24)  # the times are not cut
        if len(title) > room:
            title = f"…{title[-max(room - 1, 1) :]}"
        self._task = self._bar.add_task(escape(title), total=config.run.steps)
        if self._screen.live:
            self._screen.draw(self._bar)

    def note(self, text: str) -> None:
        self._screen.note(text)
        self._look()

    def update(self, progress: Progress, row: dict[str, float], wall_s: float) -> None:
        self._last = (progress, row)
        if self._screen.due() and not self.lost:
            self._draw(*self._last)
            self._look()

    def load(self, steps_per_s: float, machine: str) -> None:
        self._load = (steps_per_s, machine)

    def close(self) -> None:
        if self._screen.live:
            if self._last is not None:
                self._draw(*self._last)
            self._screen.close()
            self._look()

    def _look(self) -> None:
        """Check whether the terminal can still be written, and say once if it cannot."""
        if self._screen.live and not self._console.is_terminal:  # it hung up: writing says why
            self._console.file.write("\n")
            self._console.file.flush()
        where = self._config.run.run_dir
        kept = f"; it is kept in {where}" if where else ""
        then = f"the run continues without its display{kept}; Ctrl-C stops it"
        self.lost = trouble(self._console.file, then)

    def _draw(self, progress: Progress, row: dict[str, float]) -> None:
        mean = mean10 = rate = ""  # until an episode has ended, and the first second has passed
        machine, acts = "", self._config.hyper.acts
        if progress.returns:
            mean = f"{np.mean(progress.returns):.1f}"
            mean10 = f"{np.mean(list(progress.returns)[-10:]):.1f}"
        if progress.returns and progress.steps != self._curve_step:
            self._curve.append(float(np.mean(progress.returns)))
            self._curve_step = progress.steps
        if self._load is not None:
            per_s, machine = self._load
            rate = f"{per_s if acts else per_s * self._config.hyper.batch_size:,.0f}"
        unit = "steps/s" if acts else "examples/s"
        if not self._screen.live:
            figures = f"loss {row['loss']:.4f}   accuracy {row['accuracy']:.1%}" if not acts else (
                f"episodes {progress.episodes:,}"
            )  # fmt: skip
            if mean and acts:
                figures += f"   return {mean} (last 10: {mean10})"
            steps = f"step {progress.steps:,}/{self._config.run.steps:,}"
            line = "   ".join(filter(None, (steps, figures, rate and f"{rate} {unit}", machine)))
            self._screen.draw(Text(line))
            return
        self._bar.update(self._task, completed=min(progress.steps, self._config.run.steps))
        number = Column(no_wrap=True)  # where there is no room, names are wrapped first
        grid = Table.grid(Column(), number, Column(), number.copy(), padding=(0, 3))
        if acts:
            grid.add_row("steps", f"{progress.steps:,}", "updates", f"{progress.updates:,}")
            grid.add_row("episodes", f"{progress.episodes:,}", unit, rate)
            grid.add_row("return, last 100", mean, "last 10", mean10)
        else:
            grid.add_row("steps", f"{progress.steps:,}", unit, rate)
        cells = [(name.replace("_", " "), f"{row[name]:.4g}") for name in SHOWN if name in row]
        for left, right in zip_longest(cells[::2], cells[1::2], fillvalue=("", "")):
            grid.add_row(*left, *right)
        lines: list[Any] = [self._bar, grid]
        if machine:
            lines.append(Text(machine, no_wrap=True, overflow="ellipsis"))
        if len(self._curve) > 1:
            text = blocks(self._curve, min(self._curve), max(self._curve))
            lines.append(Text(text, style="cyan"))
        self._screen.draw(Group(*lines))


def report(summary: dict[str, Any], console: Console, again: Sequence[str] = ()) -> None:
    """Print the result, where the time went, and what to try next.

    Args:
        again: the words of the command that applies the remedy to try first, if it is a setting.
    """

    def say(label: str, words: str, style: str = "bold", command: bool = False) -> None:
        """Print a paragraph, or a command; in a terminal it is wrapped, and indented to its
        label."""
        room = max(console.width - INDENT, 2 * INDENT)
        lines = [Text(words)]
        if console.is_terminal:
            lines = list(map(Text, command_lines(words, room))) if command else (
                Text(words).wrap(console, room)
            )  # fmt: skip
        for line in lines:
            line.rstrip()
            head = Text(f"{label:<{INDENT}}", style=style)
            console.print(Text.assemble(head, line), soft_wrap=True)
            label = ""

    goals, missed = [], False
    for goal, seconds in summary["time_to_return_s"].items():
        if seconds is None:
            missed = missed or not goals
            goals.append(f"return {goal} not reached")
        else:
            steps = summary["steps_to_return"][goal]
            goals.append(f"return {goal} reached after {steps:,} steps, {seconds:.1f} s")
    console.print()
    achieved, ended = _achieved(summary)
    say("ACHIEVED", "; ".join([achieved, *goals]), "bold yellow" if missed else "bold green")
    steady = summary.get("steady")  # what the verdict rests on
    startup, later = "", summary["compile_later_s"]
    if not steady:  # else the next lines say it
        compiling = f"{summary['compile_s']:.1f} s compiling"
        startup = f" ({summary['startup_s']:.1f} s start-up, of it {compiling})"
    if later >= 0.05:
        startup += f", {later:.1f} s of it compiling later"
    say(
        "",
        f"{summary['steps']:,} steps, {ended}, {summary['updates']:,} updates in "
        f"{summary['wall_s']:.1f} s{startup}; {summary['steps_per_s']:,.0f} steps/s after "
        f"start-up, on {summary['placement']}",
    )
    phases, about = summary["phases"], ""
    if steady:
        phases, about = steady["phases"], f"{duration(steady['seconds'])} of training"
        apart = [(what, s) for what, s in steady["left_out"].items() if s >= 0.05]
        left_out = ", ".join(f"{what} {duration(s)}" for what, s in apart)
        about += f" (not included: {left_out})" if left_out else ""
    say("TIME", about)
    longest = min(BAR, console.width - 47) if console.is_terminal else BAR
    for words, share in _rows(phases, summary):
        line = f"  {share:6.1%}  {words}"
        if longest >= SHORTEST:
            line = f"{line:44} [cyan]{'█' * max(1, round(share * longest))}[/cyan]"
        console.print(line, soft_wrap=True)
    for words in flow_words(summary["flow"]):
        say("", words)
    if words := verdict(summary):
        say("VERDICT", words, "bold green" if summary["verdict"] == HEALTHY else "bold yellow")
    if tried := summary["try"]:
        if again:
            say("TRY", on_one_line(shlex.join(again)), command=True)
            if COMPARE.removeprefix("This ") in tried["remedy"]:
                say("", COMPARE)
        else:
            say("TRY", setting_words(tried.get("setting", ())) or tried["remedy"])
        if ("how" in tried or tried["id"] != summary["verdict"]) and (
            concern := concern_words(tried)
        ):
            say("", concern)
    label = "NEXT"
    for sentence, command in (*next_step(summary), *next_commands(summary)):
        for words in filter(None, (sentence, command)):
            say(label, on_one_line(words), command=words is command)
            label = ""
    if summary["run_dir"] and not next_commands(summary):
        say("", on_one_line(summary["run_dir"]))


def command_lines(command: str, width: int) -> list[str]:
    """Return a command as lines that a shell reads as one: each but the last ends with a backslash.

    A flag and its value stay together, so that a long value may exceed `width`.
    """
    parts = list[str]()
    for word in shlex.split(command):
        if parts and not word.startswith("-") and parts[-1].startswith("--"):
            parts[-1] += f" {shlex.quote(word)}"
        else:
            parts.append(shlex.quote(word))
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]} {part}".lstrip()
        if lines[-1] and cell_len(longer) > width - len(" \\"):
            lines.append(part)
        else:
            lines[-1] = longer
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _rows(phases: dict[str, float], summary: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the names and shares of the largest phases, and the sum of the others."""
    shares = sorted(phases.items(), key=lambda item: -item[1])
    rows = [(phase_words(name, summary), share) for name, share in shares if share >= 0.005]
    if len(rows) > MOST_ROWS:
        small = rows[MOST_ROWS - 1 :]
        rows[MOST_ROWS - 1 :] = [(f"{len(small)} smaller parts", sum(share for _, share in small))]
    return rows


def _achieved(summary: dict[str, Any]) -> tuple[str, str]:
    """Return what was learned, and how many episodes or examples it took."""
    if "examples_per_s" in summary:
        accuracy = accuracy_words(summary["test_accuracy"])
        return accuracy, f"{summary['examples_per_s']:,.0f} examples/s"
    mean, last = summary["return_mean_100"], summary["return_mean_last"]
    words = "no episode ended"
    if mean is not None:
        words = f"mean return {mean:.1f} (last 100 episodes)"
    elif last is not None:
        words = f"mean return {last:.1f} (fewer than 100 episodes)"
    return words, f"{summary['episodes']:,} episodes"


def concern_words(tried: dict[str, Any]) -> str:
    """Return the share of the time that a remedy concerns, and its gain if it was measured."""
    words = [f"concerns {percent(tried['share'])} of the time" if tried["share"] else ""]
    if "how" in tried:
        gain = MeasuredGain(*(tried[name] for name in ("gain", "low", "high", "how")))
        words.append(f"{gain_words(gain)}: {gain.how}")
    return "; ".join(filter(None, words))
