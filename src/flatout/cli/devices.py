"""`flatout devices`: a short description of the machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from flatout.cli.flags import parse
from flatout.hardware.inventory import Hardware, inventory, resolve_placement
from flatout.output import print_json, printable, reserve_stdout
from flatout_explain.hardware.running_cores import RunningCores, running_cores


@dataclass(frozen=True)
class DevicesArguments:
    """List this machine's devices, the programs that use them, and those that a run would use.

    --cores: listed cores may be shared with other programs, limited by a CPU quota, or two hardware
    threads of one core. 1, 2, 4, ... processes are busy for half a second each, and the table says
    how many cores ran for them (CPU seconds per second), how much work they did, in that of one
    process, and why that is less than the machine lists.
    """

    usage: ClassVar[tuple[str, ...]] = ("[--cores] [--json]",)

    cores: bool = False
    """Measure how many cores really run at once; takes some seconds."""
    json: bool = False
    """Print it as JSON, alone on stdout."""


def devices(argv: list[str]) -> int:
    """Run the command; return the exit code."""
    asked = parse(DevicesArguments, "flatout devices", argv)
    if asked.json:
        reserve_stdout()
    hardware = inventory()
    would = {
        kind: str(resolve_placement("auto", hardware, images=kind == "images")[0])
        for kind in ("vectors", "images")
    }
    if not asked.json:
        show(hardware, would, console := Console())
        if asked.cores:
            console.print()
            show_cores(running_cores(), console)
        return 0
    measured = {"running_cores": running_cores().as_json()} if asked.cores else {}
    print_json(asdict(hardware) | {"auto": would} | measured)
    return 0


def show(hardware: Hardware, would: dict[str, str], console: Console) -> None:
    """Print the devices, their memory and the programs that use it, and the placement ``auto``."""
    numbers = Column("memory free", justify="right"), Column("of", justify="right")
    table = Table("device", "what", *numbers, "used by", box=None, padding=(0, 2), pad_edge=False)
    name = "cpu" if hardware.cpu_devices == 1 else f"cpu:0..{hardware.cpu_devices - 1}"
    table.add_row(
        name, f"{hardware.cpu_name}, {hardware.cores} cores",
        f"{hardware.memory_available_mb:,} MiB", f"{hardware.memory_total_mb:,} MiB", "",
    )  # fmt: skip
    for gpu in hardware.gpus:
        users = ", ".join(
            f"{process.name} ({process.pid}"
            + (f": {process.memory_mb:,} MiB)" if process.memory_mb is not None else ")")
            for process in gpu.processes
        )
        table.add_row(
            f"gpu:{gpu.index}", gpu.name, f"{gpu.memory_free_mb:,} MiB",
            f"{gpu.memory_total_mb:,} MiB", Text(printable(users) or "nobody"),
        )  # fmt: skip
    console.print(table)
    if hardware.gpu_note:
        console.print(Text(printable(hardware.gpu_note), style="yellow"), soft_wrap=True)
    if hardware.unused_gpu_warning:
        console.print(Text(hardware.unused_gpu_warning, style="bold yellow"), soft_wrap=True)
    elif not hardware.gpus:
        console.print("no GPU in this machine, or none visible")
    console.print()
    for kind, placement in would.items():
        console.print(f"--placement auto with {kind} as observations: [bold]{placement}[/bold]")


def show_cores(found: RunningCores, console: Console) -> None:
    """Print how many cores ran for each number of busy processes, and what that means."""
    names = "busy processes", "cores that ran", "work, in that of one process", "each"
    table = Table(*(Column(name, justify="right") for name in names), box=None, padding=(0, 2),
                  pad_edge=False)  # fmt: skip
    for level in found.levels:
        table.add_row(
            str(level.processes), f"{level.running:.2f}", f"{level.work:.2f}",
            f"{100 * level.work / level.processes:.0f} %",
        )  # fmt: skip
    console.print(table)
    style = "yellow" if found.missing or found.slower else ""
    console.print(Text(found.sentence(), style=style), soft_wrap=True)
