"""A comparison of numbers of devices in the terminal, and as a drawing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flatout.errors import writing
from flatout.explain.causes import HEALTHY
from flatout.fleet.scaling import PARTS, Scaling

BAR = 24


def show(scaling: Scaling, crossover: dict[str, Any] | None, console: Console) -> None:
    """The table, the speed-up as bars, the verdict, and `crossover`, as the search gives it."""
    rates = _table("devices", "time, s", "steps/s", "examples/s", "speed-up", "efficiency")
    parts = _table("s of", *PARTS)
    for row in scaling.rows:
        rates.add_row(
            str(row.devices), f"{row.seconds:.2f}", f"{row.steps_per_s:,.0f}",
            f"{row.examples_per_s:,.0f}", f"{scaling.speed_up(row):.2f}",
            f"{scaling.efficiency(row):.0%}",
        )  # fmt: skip
        parts.add_row(str(row.devices), *(f"{row.parts[name]:.2f}" for name in PARTS))
    for table in (rates, parts):
        console.print(table)
        console.print()
    fastest = max(*(scaling.speed_up(row) for row in scaling.rows), 1.0)
    for row in scaling.rows:
        gained = scaling.speed_up(row)
        bar = "█" * max(1, round(BAR * gained / fastest))
        console.print(f"{row.devices:>4}  [cyan]{bar}[/cyan] {gained:.2f}x")
    cause, words = scaling.verdict()
    style = "bold green" if cause == HEALTHY else "bold yellow"
    verdict = Text("VERDICT  ", style=style).append(f"{cause}: {words}", style="not bold")
    console.print(verdict, soft_wrap=not console.is_terminal)
    if scaling.virtual:
        console.print(
            f"[dim]Virtual devices share the same {scaling.cores} cores: the arithmetic cannot "
            "become faster, but what one device leaves idle another one takes. What averaging and "
            "dispatching cost is true of this machine, a speed-up only of real devices.[/dim]",
            soft_wrap=not console.is_terminal,
        )
    if crossover is None:
        return
    for batch, few, many in crossover["tried"]:
        line = f"batch {batch:,}: {few:,.0f} examples/s on the fewest, {many:,.0f} on the most"
        console.print(line, soft_wrap=not console.is_terminal)
    line = "They were not faster with any batch that was tried."
    if crossover["batch"] is not None:
        line = f"Several devices are faster from batch {crossover['batch']:,} on."
    console.print(line, soft_wrap=not console.is_terminal)


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    for head in heads:
        table.add_column(head, justify="right")
    return table


def draw(scaling: Scaling, file: Path) -> None:
    """Write the speed-up as a picture.

    Raises:
        FlatoutError: it cannot be written.
    """
    from matplotlib.figure import Figure  # type: ignore[import-not-found]

    counts = [row.devices for row in scaling.rows]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(counts, [n / counts[0] for n in counts], "--", color="0.6", label="in proportion")
    axes.plot(counts, [scaling.speed_up(row) for row in scaling.rows], "o-", label="measured")
    axes.set(xlabel="devices", ylabel="speed-up", xticks=counts, ylim=(0, None))
    axes.legend()
    with writing(file):
        figure.savefig(file)
