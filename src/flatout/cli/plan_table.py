"""`flatout plan --table`: the fastest placement by network and algorithm, measured here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from flatout.cli.flags import out_files, value_of, write_out
from flatout.cli.plan_arguments import PlanArguments
from flatout.config.schema import NetworkConfig
from flatout.config.values import check_widths
from flatout.errors import UsageError
from flatout.output import print_json, reserve_stdout
from flatout.reports.figure import PICTURES
from flatout_explain.cli.parsing import option

if TYPE_CHECKING:
    from rich.console import Console

    from flatout.measurements.placement_table import Cell, Row

PLANNING_S = 6.0


def plan_table(asked: PlanArguments, given: Mapping[str, Any]) -> int:
    """Run ``flatout plan --table``; return the exit code.

    Args:
        asked, given: see `flatout.cli.arguments.read_settings`.
    """
    own = {"--preset": asked.preset, "--config": asked.config, asked.algorithm: asked.algorithm}
    more = [flag for flag, value in own.items() if value is not None]
    more += map(option, given.keys() - {"hidden"})
    if more:
        raise UsageError(f"--table trains its own runs: leave out {more[0]}.")
    sizes = [value_of(NetworkConfig, "hidden", (text,)) for text in given.get("hidden", ())]
    for widths in sizes:
        check_widths("--hidden", widths)
    outs = out_files(asked.out, ".csv", ".json", *PICTURES)
    tables = [file for file in outs if file.suffix == ".csv"]
    if len(tables) > 1:
        raise UsageError("--out: name one .csv file.")
    as_json, part = asked.json, asked.share
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
    for table_file in tables:
        names = [hardware.cpu_name, f"{hardware.cores} cores"]
        machine = ", ".join([*names, *(gpu.name for gpu in hardware.usable_gpus)])
        file = PlacementFile(table_file, part, machine)
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
    values = {"rows": [asdict(row) | {"winner": row.winner} for row in done]}
    write_out(outs, values, partial(table.draw, done))
    if as_json:
        print_json(values)
    return 0


def show(rows: list[Row], console: Console) -> None:
    """Print the table."""
    from rich.table import Table

    from flatout.measurements.placement_table import HERE_NOT, PLACEMENTS

    table = Table("hidden", "mode", *PLACEMENTS, "fastest", "planned", box=None, padding=(0, 2))
    for row in rows:
        texts = (HERE_NOT if cell is None else _shown(cell) for cell in row.cells)
        table.add_row(row.hidden, row.mode, *texts, row.winner, row.planned)
    console.print(table)


def _shown(cell: Cell) -> str:
    """Describe what was measured of a cell."""
    goal = "" if cell.to_goal is None else f", goal {cell.to_goal:.1f} s"
    cpu = "" if cell.cpu is None else f", cpu {100 * cell.cpu:.0f} %"
    gpu = "" if cell.gpu is None else f", gpu {100 * cell.gpu:.0f} %"
    seconds = "-" if cell.seconds is None else f"{cell.seconds:.1f} s"
    return f"{seconds}{goal}{cpu}{gpu}"
