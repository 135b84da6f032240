"""A profiler's trace as arrays: what devices computed, and what the host did meanwhile.

Times are in seconds from the first event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np


class Kind(IntEnum):
    """Kinds of events."""

    KERNEL = 0  # on a device: computes
    COLLECTIVE = 1  # a kernel that exchanges data with other devices
    COPY = 2
    SET = 3
    OPERATION = 4  # on the host: an operator of the framework
    CALL = 5  # a call of the device's driver or runtime
    RANGE = 6  # a range that the user or a library has named
    PYTHON = 7  # a Python function
    WAIT = 8  # a call that waits for the device


@dataclass(frozen=True)
class Events:
    """N events of one thread or device, in order of their beginnings."""

    begin: np.ndarray  # float64
    end: np.ndarray
    kind: np.ndarray  # int8, of `Kind`
    name: np.ndarray  # int32, positions in the trace's names
    # int64: an operation of a device has that of the call that launched it; -1 if there is none
    correlation: np.ndarray

    def __len__(self) -> int:
        return len(self.begin)

    def where(self, chosen: np.ndarray) -> Events:
        """Those for which ``chosen [N]`` is true."""
        return Events(
            self.begin[chosen], self.end[chosen], self.kind[chosen], self.name[chosen],
            self.correlation[chosen],
        )  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A device or a thread."""

    name: str  # for a reader: ``gpu:0``, ``thread 4711``
    events: Events
    model: str = ""  # of a device, if it is known


@dataclass(frozen=True)
class Trace:
    """A trace of one process."""

    profiler: str  # whose trace it is, in words
    names: list[str]  # of all events
    devices: list[Row]  # those with events
    threads: list[Row]  # of the host
    steps: np.ndarray  # ``[N, 2]``: begin and end of each step that the program has marked
    # begin and end of the time between the profiler's start and stop; None if unknown
    recorded: tuple[float, float] | None
    rank: int | None  # among several processes that train together; None if there is one only
    unknown: dict[str, int]  # number of events by category, of categories that are not understood

    @property
    def extent(self) -> tuple[float, float]:
        """The first event's begin and the last one's end."""
        rows = [row.events for row in (*self.devices, *self.threads) if len(row.events)]
        if not rows:
            return 0.0, 0.0
        return min(float(e.begin[0]) for e in rows), max(float(e.end.max()) for e in rows)

    @property
    def window(self) -> tuple[float, float]:
        """The explained time: the marked steps, else the recorded time, else all events."""
        if len(self.steps):
            return float(self.steps[0, 0]), float(self.steps[:, 1].max())
        return self.recorded or self.extent
