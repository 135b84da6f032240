"""A comparison of numbers of devices, as text in the terminal and as a picture."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from flatout.measurements.scaling import PARTS, Scaling
from flatout.reports.figure import figure, save
from flatout_explain.causes import HEALTHY

BAR = 24


def show(scaling: Scaling, crossover: dict[str, Any] | None, console: Console) -> None:
    """Print the table, the speed-up as bars, the verdict, and the search's `crossover`."""
    heads = ("devices", "time, s", "steps/s", "examples/s", "speed-up", "efficiency")
    rates, parts = (
        Table(*(Column(name, justify="right") for name in names), box=None, padding=(0, 2),
              pad_edge=False)
        for names in (heads, ("s of", *PARTS))
    )  # fmt: skip
    say = partial(console.print, soft_wrap=not console.is_terminal)
    for row in scaling.rows:
        rates.add_row(
            str(row.devices), f"{row.seconds:.2f}", f"{row.steps_per_s:,.0f}",
            f"{row.examples_per_s:,.0f}", f"{scaling.speed_up(row):.2f}",
            f"{scaling.efficiency(row):.0%}",
        )  # fmt: skip
        parts.add_row(str(row.devices), *(f"{row.parts[name]:.2f}" for name in PARTS))
    console.print(rates, "", parts, "", sep="\n")
    fastest = max(*(scaling.speed_up(row) for row in scaling.rows), 1.0)
    for row in scaling.rows:
        gained = scaling.speed_up(row)
        bar = "█" * max(1, round(BAR * gained / fastest))
        console.print(f"{row.devices:>4}  [cyan]{bar}[/cyan] {gained:.2f}x")
    cause, words = scaling.verdict()
    style = "bold green" if cause == HEALTHY else "bold yellow"
    verdict = Text("VERDICT  ", style=style).append(f"{cause}: {words}", style="not bold")
    say(verdict)
    if scaling.virtual:
        say(
            f"[dim]Virtual devices share the same {scaling.cores} cores: the arithmetic cannot "
            "become faster, but what one device leaves idle another one takes. What averaging and "
            "dispatching cost is true of this machine, a speed-up only of real devices.[/dim]"
        )
    if crossover is None:
        return
    for batch, few, many in crossover["tried"]:
        say(f"batch {batch:,}: {few:,.0f} examples/s on the fewest, {many:,.0f} on the most")
    if crossover["batch"] is None:
        say("They were not faster with any batch that was tried.")
    else:
        say(f"Several devices are faster from batch {crossover['batch']:,} on.")


def draw(scaling: Scaling, file: Path) -> None:
    """Write the speed-up as a picture.

    Raises:
        FlatoutError: the file cannot be written.
    """
    counts = [row.devices for row in scaling.rows]
    with figure(6, 4) as drawn:
        axes = drawn.add_subplot()
        axes.plot(counts, [n / counts[0] for n in counts], "--", color="0.6", label="in proportion")
        axes.plot(counts, [scaling.speed_up(row) for row in scaling.rows], "o-", label="measured")
        axes.set(xlabel="devices", ylabel="speed-up", xticks=counts, ylim=(0, None))
        axes.legend()
        save(drawn, file)
