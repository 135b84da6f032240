"""Counters that a program reads of itself and writes as JSON to the file that COUNTS names.

`garbage`: Python's own callbacks. `faults`: the kernel's time for this thread, nearly all of which
goes to page faults here. `memory` and `quota`: the kernel's pressure and throttling counters.
"""

import contextlib
import gc
import json
import os
import re
import resource
import tempfile
import time

PATH = os.environ.pop("COUNTS", None)
WARM_UP = 1.0  # seconds that are not counted


@contextlib.contextmanager
def mapped(rng):
    """Map a new file of 400 MB in the folder FILES: 102,400 rows of random bytes."""
    import numpy as np

    with tempfile.NamedTemporaryFile(dir=os.environ.get("FILES")) as file:
        for _ in range(100):
            file.write(rng.integers(256, size=4 << 20, dtype=np.uint8).tobytes())
        file.flush()
        yield np.memmap(file.name, np.uint8, "r", shape=(100 << 10, 4096))


def number(path, pattern):
    """The first number in a file of the kernel's that follows a pattern."""
    with open(path) as file:
        return int(re.search(pattern + r"\D*?(\d+)", file.read()).group(1))


def members(folder):
    """The processes of a group; none without a group."""
    if not folder:
        return []
    with open(folder + "/cgroup.procs") as file:
        return file.read().split()


def seconds_of(process):
    """The seconds of work of a process of the group."""
    try:
        with open(f"/proc/{process}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


class Counts:
    """Counts a share of the time from `WARM_UP` on."""

    def __init__(self, kind, seconds):
        self.kind, self.end, self.first = kind, time.perf_counter() + seconds, None
        self.collected = self.since = 0.0
        if kind == "garbage":
            gc.callbacks.append(self.collection)
        self.begin = time.perf_counter() + WARM_UP

    def collection(self, event, about):
        now = time.perf_counter()
        if event == "start":
            self.since = now
        else:
            self.collected += now - self.since

    def read(self):
        """(the time, the counter in seconds, seconds of work in the group)."""
        folder = os.environ.get("GROUP", "")
        count = {
            "garbage": lambda: self.collected,
            "faults": lambda: resource.getrusage(resource.RUSAGE_THREAD).ru_stime,
            "memory": lambda: 1e-6 * number("/proc/pressure/memory", r"some .*total="),
            "quota": lambda: 1e-9 * number(folder + "/cpu.stat", "throttled_time"),
        }[self.kind]()
        used = sum(map(seconds_of, members(folder)))
        return time.perf_counter(), count, used

    def on(self):
        """Whether the program continues."""
        now = time.perf_counter()
        if self.first is None and now >= self.begin:
            self.first = self.read()
        if now < self.end:
            return True
        if PATH:
            wall, count, used = (b - a for a, b in zip(self.first, self.read()))
            whole = count + used if self.kind == "quota" else wall
            faults = resource.getrusage(resource.RUSAGE_SELF)
            with open(PATH, "w") as file:
                json.dump({"share": count / whole, "seconds": wall, "minor": faults.ru_minflt,
                           "major": faults.ru_majflt}, file)  # fmt: skip
        return False
