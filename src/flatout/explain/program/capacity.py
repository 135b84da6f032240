"""The cores' combined speed, which shared units and power limit."""

from __future__ import annotations

import subprocess
import sys
import time

from flatout.hardware.others import busiest_others

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
    """The speed of all cores together, relative to one core alone: 1 to `cores`.

    Runs plain Python for half a second, first in one process, then in one per core. Returns
    `cores` if that cannot be measured: also while other programs use the cores.
    """
    number = min(cores, MOST)
    if number < 2:
        return 1.0
    if busiest_others(SPAN_S):
        return float(cores)
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
        return float(cores)
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
    return min(max(times * cores / number, 1.0), float(cores))
