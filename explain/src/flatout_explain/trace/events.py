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


NONE = -1  # no correlation, no name, no event

EVENT = np.dtype(
    [("begin", "f8"), ("end", "f8"), ("correlation", "i8"), ("name", "i4"), ("kind", "i1")],
    align=True,
)
"""An event: `kind` is of `Kind`, `name` a position in the trace's names. An operation of a device
has the correlation of the call that launched it."""


@dataclass(frozen=True)
class Row:
    """A device or a thread."""

    name: str  # for a reader: ``gpu:0``, ``thread 4711``
    events: np.ndarray  # ``[N]`` of `EVENT`, in order of their beginnings
    model: str = ""  # of a device, if it is known


@dataclass(frozen=True)
class Trace:
    """A trace of one process."""

    profiler: str  # whose trace it is, in words
    names: list[str]  # of all events
    devices: list[Row]  # those with events
    threads: list[Row]  # of the host, those with events
    steps: np.ndarray  # ``[N, 2]``: begin and end of each step that the program has marked
    # begin and end of the time between the profiler's start and stop; None if unknown
    recorded: tuple[float, float] | None
    rank: int | None  # among several processes that train together; None if there is one only
    unknown: dict[str, int]  # number of events by category, of categories that are not understood
    earlier: int = 0  # number of earlier recordings of the same process, which were not read

    @property
    def extent(self) -> tuple[float, float]:
        """The first event's begin and the last one's end."""
        rows = [row.events for row in (*self.devices, *self.threads)]
        begin = min((float(events["begin"][0]) for events in rows), default=0.0)
        return begin, max((float(events["end"].max()) for events in rows), default=0.0)

    @property
    def window(self) -> tuple[float, float]:
        """The explained time: the marked steps, else the recorded time, else all events."""
        if len(self.steps):
            return float(self.steps[0, 0]), float(self.steps[:, 1].max())
        return self.recorded or self.extent


def spans(rows: np.ndarray) -> np.ndarray:
    """Begin and end of events, or of other rows that have both: ``[N, 2]``."""
    return np.stack([rows["begin"], rows["end"]], axis=1)


def begins_in(events: np.ndarray, window: tuple[float, float]) -> np.ndarray:
    """Return whether each event begins in a window."""
    begin, end = window
    return (events["begin"] >= begin) & (events["begin"] < end)
