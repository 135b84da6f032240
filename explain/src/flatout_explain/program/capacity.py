"""The combined speed of all cores, which share units and power."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress

from flatout_explain.errors import FlatoutError
from flatout_explain.files import kept_numbers
from flatout_explain.files.kernel import boot_id
from flatout_explain.hardware.cores import usable_cpus
from flatout_explain.hardware.others import busiest_others

SPAN_S = 0.15
STARTING_S = 0.25
MOST = 16  # maximum number of processes; the result is scaled up to more cores

SPINNER = """
import sys, time
turns = []
for begin in map(float, sys.argv[2:]):
    time.sleep(max(0.0, begin - time.monotonic()))
    end, count = begin + float(sys.argv[1]), 0
    while time.monotonic() < end:
        for _ in range(200):
            count += 1
    turns.append(count)
print(*turns)
"""


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
    """Run plain Python for half a second, first in one process, then in one per core; their speed
    together, relative to the first one's, or None if that fails."""
    number = min(cores, MOST)
    alone = time.monotonic() + STARTING_S
    side_by_side = alone + SPAN_S
    command = [sys.executable, "-I", "-S", "-c", SPINNER, str(SPAN_S)]
    spinners = list[subprocess.Popen[str]]()
    try:
        for begins in [[alone, side_by_side]] + [[side_by_side]] * (number - 1):
            argv = [*command, *map(str, begins)]
            spinners.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        counts = [list(map(int, spinner.communicate()[0].split())) for spinner in spinners]
        times = sum(turns[-1] for turns in counts) / max(counts[0][0], 1)
    except (OSError, LookupError):  # processes are limited, or one was killed
        return None
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
    return min(max(times * cores / number, 1.0), float(cores))
