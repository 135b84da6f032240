"""``flatout train ... --dry-run``: the memory that a run would take, without training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from flatout.config.schema import TrainConfig
from flatout.errors import NoRoomError
from flatout.output import on_one_line, print_json

if TYPE_CHECKING:
    from flatout.config.placement import DeviceName, Placement
    from flatout.engine.memory import Expectation
    from flatout.hardware.inventory import Hardware

PURPOSES = {
    "model": "parameters and statistics, before and after an update",
    "optimiser": "optimiser state, before and after an update",
    "trajectory": "trajectories being collected or learned from",
    "workspace": "gradients",
    "actor processes": "actor processes",
    "runtime": "CUDA context",
}
"""The purposes of memory, in words; replay is named with its size."""


def dry_run(config: TrainConfig, members: int = 1) -> int:
    """Print the MiB that a run would take by device and purpose; return the exit code.

    Args:
        config: the settings of the run, or of each member of a population.
        members: the number of members of a population.

    Raises:
        UsageError, FlatoutError: as `expected_memory` raises them.
        NoRoomError: after everything is printed, because the run does not fit.
    """
    from flatout.run.build import expected_memory

    notes: list[str] = []
    placement, expectation, hardware = expected_memory(config, notes.append)
    expectation = expectation.before_compiling(placement)
    refused = None
    try:
        expectation.check(placement, hardware)
    except NoRoomError as error:
        refused = error
    if config.run.json:
        print_json(_values(placement, expectation, hardware, config, members, refused, notes))
    else:
        _show(placement, expectation, hardware, config, members, notes, Console())
    if refused is not None:
        raise refused
    return 0


def _values(
    placement: Placement, expectation: Expectation, hardware: Hardware, config: TrainConfig,
    members: int, refused: NoRoomError | None, notes: list[str],
) -> dict[str, object]:  # fmt: skip
    from flatout.engine.memory import available_mb

    def rounded(sizes: dict[DeviceName, dict[str, float]]) -> dict[str, dict[str, float]]:
        return {str(d): {what: round(mb, 3) for what, mb in s.items()} for d, s in sizes.items()}

    return {
        "placement": str(placement),
        "members": members,
        "replay_transitions": getattr(config.hyper, "buffer_size", None),
        "expected_mb": rounded(expectation.by_purpose(placement)),
        "available_mb": {
            str(memory): round(available_mb(memory, placement, hardware)[0], 1)
            for memory in expectation.by_memory(placement)
        },
        "fits": refused is None,
        "refusal": None if refused is None else str(refused),
        "notes": notes,
    }


def _show(
    placement: Placement, expectation: Expectation, hardware: Hardware, config: TrainConfig,
    members: int, notes: list[str], console: Console,
) -> None:  # fmt: skip
    from flatout.engine.memory import available_mb, names_of

    def say(text: str, style: str = "") -> None:
        console.print(Text(on_one_line(text), style=style), soft_wrap=True)

    for note in notes:
        say(f"· {note}", "dim")
    say(f"placement {placement}")
    table = Table(
        "device", Column("MiB", justify="right"), "for", box=None, padding=(0, 2), pad_edge=False
    )
    for device, sizes in expectation.by_purpose(placement).items():
        for what, size in sizes.items():
            table.add_row(str(device), f"{size:,.1f}", _words(what, config))
    console.print(table)
    each = " for each member" if members > 1 else ""
    for memory, sizes in expectation.by_memory(placement).items():
        available, capped = available_mb(memory, placement, hardware)
        size, where = sum(sizes.values()), names_of(memory, placement)
        say(f"{where}: about {size:,.1f} MiB{each}; {available:,.0f} MiB are available{capped}")
        if members > 1:
            say(f"{where}: about {members * size:,.1f} MiB if all {members} members train at once")
    say("An update's activations come on top; they are known once it is compiled.")


def _words(what: str, config: TrainConfig) -> str:
    if what != "replay":
        return PURPOSES.get(what, what)
    hyper = config.hyper
    if (rows := getattr(hyper, "buffer_size", None)) is not None:
        return f"replay of {rows:,} transitions"
    return f"replay of {getattr(hyper, 'replay_trajectories', 1)} trajectories"
