"""Collects a trace's events, whatever wrote them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from flatout_explain.trace.events import EVENT, Kind, Row, Trace
from flatout_explain.trace.names import device_kind, is_wait

STEP = re.compile(r"ProfilerStep\*?\s*#?\s*\d+")

LONGEST = 500  # characters of a name
LONGEST_S = 3.2e7
MOST_DEVICES, MOST_THREADS = 256, 4096
MOST_EVENTS = 6_000_000  # which take up to 220 bytes each

Events = list[tuple[float, float, int, int, Kind]]
"""Begin, end, correlation, name and kind of events, as in `EVENT`."""

Thread = tuple[str, Hashable]
"""A thread's name, and what tells it from others of that name."""


@dataclass
class Collected:
    """Events by device and by thread; times in any unit, from any moment on."""

    unit: float  # seconds of a unit of time
    names: dict[str, int] = field(default_factory=dict)
    devices: defaultdict[str, Events] = field(default_factory=lambda: defaultdict(list))
    threads: defaultdict[Thread, Events] = field(default_factory=lambda: defaultdict(list))
    models: dict[str, str] = field(default_factory=dict)  # by device
    steps: list[tuple[float, float]] = field(default_factory=list)
    recorded: list[float | None] = field(default_factory=lambda: [None, None])
    unknown: Counter[str] = field(default_factory=Counter)
    count: int = 0  # of all events

    def _add(
        self, row: Events, name: str, kind: Kind, begin: float, end: float, correlation: int
    ) -> None:
        """Add an event to the row of a device or a thread."""
        self._count()
        number = self.names.setdefault(name, len(self.names))
        row.append((begin, end, correlation, number, kind))

    def _count(self) -> None:
        self.count += 1
        if self.count > MOST_EVENTS:
            raise ValueError(f"it has more than {MOST_EVENTS:,} events: record fewer steps")

    def on_device(
        self, device: str, kind: Kind, name: str, begin: float, end: float, correlation: int
    ) -> None:
        """Add what a device did."""
        name = name[:LONGEST]
        kind = device_kind(name) if kind is Kind.KERNEL else kind
        self._add(self.devices[device], name, kind, begin, end, correlation)

    def on_host(
        self, thread: Thread, kind: Kind, name: str, begin: float, end: float, correlation: int
    ) -> None:
        """Add what a thread did."""
        name = name[:LONGEST]
        if kind is not Kind.PYTHON and STEP.fullmatch(name):
            self._count()
            self.steps.append((begin, end))
            return
        if kind is not Kind.PYTHON and is_wait(name):
            kind = Kind.WAIT
        elif name.startswith("$profiler.py:"):
            if name.endswith(" start_trace"):
                self.recorded[0] = end
            elif name.endswith(" stop_trace"):
                self.recorded[1] = begin
        self._add(self.threads[thread], name, kind, begin, end, correlation)

    def trace(self, profiler: str, rank: int | None = None) -> Trace:
        """Return the trace, in seconds from its first event.

        Raises:
            ValueError: it has no events, too many devices or threads, or impossible times.
        """
        if not self.count:
            raise ValueError("it has no events of a device or a thread")
        for what, number, most in (
            ("devices", len(self.devices), MOST_DEVICES),
            ("threads", len(self.threads), MOST_THREADS),
        ):
            if number > most:
                raise ValueError(f"it has {number:,} {what}, and at most {most:,} are read")
        rows = [*self.devices.values(), *self.threads.values()]
        origin = min((event[0] for row in rows for event in row), default=0.0)
        last = max((event[1] for row in rows for event in row), default=0.0)
        if not (last - origin) * self.unit < LONGEST_S:
            raise ValueError("its times are more than a year apart")

        def seconds(times: object) -> np.ndarray:
            return (np.asarray(times, np.float64) - origin) * self.unit

        def events(row: Events) -> np.ndarray:
            found = np.array(row, EVENT)
            found["begin"], found["end"] = seconds(found["begin"]), seconds(found["end"])
            return found[np.lexsort((-found["end"], found["begin"]))]

        begin, end = self.recorded
        known = begin is not None and end is not None and begin < end
        devices = sorted(self.devices, key=lambda name: (len(name), name))  # by number
        return Trace(
            profiler, list(self.names),
            [Row(name, events(self.devices[name]), self.models.get(name, "")) for name in devices],
            [Row(name, events(row)) for (name, _), row in self.threads.items()],
            seconds(sorted(self.steps)).reshape(-1, 2),
            (float(seconds(begin)), float(seconds(end))) if known else None, rank,
            dict(self.unknown),
        )  # fmt: skip
