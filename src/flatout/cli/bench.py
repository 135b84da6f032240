"""The command line of ``flatout bench``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from flatout.cli.flags import take, take_all, take_file, take_switch
from flatout.cli.scale import need_matplotlib
from flatout.errors import UsageError
from flatout.output import print_json, reserve_stdout

if TYPE_CHECKING:
    from rich.console import Console

    from flatout.measurements.placement_table import Cell, Row

HELP = """\
usage: flatout bench placement [--share 0.2] [--hidden 64,64 ...] [--csv FILE] [--plot FILE]
                               [--json]

Where should acting and learning run? PPO on CartPole and DDPG on Pendulum, with networks from 64 to
256x256, on each placement that this machine has: seconds for a fixed number of episodes and to the
return threshold, CPU and GPU in use, the fastest, and what planning chooses.

  --share 0.2       play this share of the 500 (PPO) and 200 (DDPG) episodes
  --hidden 64,64    only this network; repeatable
  --csv FILE        a line for each run, written when it ends; the last columns follow when its row
                    is finished. The same command with the same file continues after a stop
  --plot FILE       draw it (.svg, .png or .pdf; pip install matplotlib)
  --json            print one JSON object, alone on stdout
"""
PLANNING_S = 6.0


def bench(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    if not argv or any(word in argv for word in ("-h", "--help")):
        print(HELP, end="")
        return 0 if argv else 2
    if argv[0] != "placement":
        raise UsageError(f"there is no benchmark {argv[0]!r}; there is placement.")
    as_json, argv = take_switch(argv[1:], "--json")
    share, argv = take(argv, "--share")
    table_file, argv = take_file(argv, "--csv")
    plot, argv = take_file(argv, "--plot")
    texts, argv = take_all(argv, "--hidden", 1)
    sizes = [_hidden(text) for text in texts]
    if argv:
        raise UsageError(f"bench placement knows no {argv[0]}; see flatout bench --help.")
    part = _share(share)
    if plot is not None:
        need_matplotlib(plot)
    from rich.console import Console

    from flatout.hardware.inventory import inventory
    from flatout.measurements import placement_table as table
    from flatout.measurements.placement_file import PlacementFile

    if as_json:
        reserve_stdout()
    console, hardware = Console(stderr=as_json), inventory()
    sizes = [*dict.fromkeys(sizes)] or [*table.HIDDEN]
    file: PlacementFile | None = None
    found: dict[tuple[str, str], Row] = {}
    if table_file is not None:
        names = [hardware.cpu_name, f"{hardware.cores} cores"]
        machine = ", ".join([*names, *(gpu.name for gpu in hardware.usable_gpus)])
        file = PlacementFile(Path(table_file), part, machine)
        found = file.read(table.names(sizes))
        if found:
            done = sum(row.finished for row in found.values())
            count = f"{done} of {len(table.names(sizes))}"
            again = "remove the file to measure them again"
            console.print(f"{table_file}: {count} rows are finished; {again}", highlight=False,
                          soft_wrap=True, markup=False)  # fmt: skip
    for row in table.rows(hardware, part, PLANNING_S, sizes, found):
        found[row.hidden, row.mode] = row
        if file is not None:
            file.put(row)
        name, cell = f"{row.mode}, hidden {row.hidden}", row.cells[-1]
        if row.finished:
            console.print(f"{name}: {row.winner}", highlight=False)
        elif cell is not None:  # a stop loses nothing that was measured
            console.print(f"{name}, on {cell.placement}: {_shown(cell)}", highlight=False)
    done = [found[name] for name in table.names(sizes)]
    show(done, console)
    if plot is not None:
        table.draw(done, Path(plot))
    if as_json:
        print_json({"rows": [asdict(row) | {"winner": row.winner} for row in done]})
    return 0


def _share(text: str | None) -> float:
    try:
        share = 1.0 if text is None else float(text)
    except ValueError:
        share = 0.0
    if not 0.0 < share <= 1.0:
        raise UsageError(f"--share {text}: a share lies above 0 and up to 1.")
    return share


def _hidden(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isdecimal() and 0 < int(word) <= 65536 for word in words):
        raise UsageError(f"--hidden {text}: write widths such as 64,64.")
    return tuple(map(int, words))


def show(rows: list[Row], console: Console) -> None:
    """Print the table."""
    from rich.table import Table

    from flatout.measurements.placement_table import HERE_NOT, PLACEMENTS

    table = Table("hidden", "mode", *PLACEMENTS, "fastest", "planned", box=None, padding=(0, 2))
    for row in rows:
        texts = []
        for cell in row.cells:
            if cell is None:
                texts.append(HERE_NOT)
                continue
            texts.append(_shown(cell))
        table.add_row(row.hidden, row.mode, *texts, row.winner, row.planned)
    console.print(table)


def _shown(cell: Cell) -> str:
    """Describe what was measured of a cell."""
    goal = "" if cell.to_goal is None else f", goal {cell.to_goal:.1f} s"
    cpu = "" if cell.cpu is None else f", cpu {100 * cell.cpu:.0f} %"
    gpu = "" if cell.gpu is None else f", gpu {100 * cell.gpu:.0f} %"
    seconds = "-" if cell.seconds is None else f"{cell.seconds:.1f} s"
    return f"{seconds}{goal}{cpu}{gpu}"
