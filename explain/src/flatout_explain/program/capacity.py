"""The combined speed of all cores, which share units and power."""

from __future__ import annotations

from contextlib import suppress

from flatout_explain.errors import FlatoutError
from flatout_explain.files import kept_numbers
from flatout_explain.files.kernel import boot_id
from flatout_explain.hardware.cores import usable_cpus
from flatout_explain.hardware.others import busiest_others
from flatout_explain.hardware.running_cores import running_cores

SPAN_S = 0.15
MOST = 16  # maximum number of processes; the result is scaled up to more cores


def together(cores: int) -> float:
    """Return the speed of all cores together, relative to one core alone: 1 to `cores`.

    It is measured once for each start of the machine, and kept in the user's cache: later programs
    start without this load. The result is `cores` if it cannot be measured, as while other programs
    use the cores.
    """
    if cores < 2:
        return 1.0
    cpus = ",".join(map(str, sorted(usable_cpus())))
    boot = boot_id()
    name = f"cores together: {cores} of {cpus}, boot {boot}"
    with suppress(FlatoutError):  # there is no home folder
        if boot and (known := kept_numbers.numbers().get(name)):
            return min(max(known, 1.0), float(cores))
    measured = None if busiest_others(SPAN_S) else _measure(cores)
    if measured is None:
        return float(cores)
    if boot:
        with suppress(FlatoutError):
            kept_numbers.keep_number(name, measured)
    return measured


def _measure(cores: int) -> float | None:
    """Return the speed of a busy process on each core together, relative to one process alone;
    None if that cannot be measured."""
    number = min(cores, MOST)
    try:
        found = running_cores(cores, (1, number), SPAN_S)
    except FlatoutError:  # processes are limited, or one was killed
        return None
    return min(max(found.work * cores / number, 1.0), float(cores))
