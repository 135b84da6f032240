"""Collects a trace's events, whatever wrote them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from flatout.explain.trace.events import Events, Kind, Row, Trace
from flatout.explain.trace.names import device_kind, is_wait

STEP = re.compile(r"ProfilerStep\*?\s*#?\s*\d+")

NONE = -1  # no correlation
LONGEST = 500  # characters of a name
LONGEST_S = 3.2e7
MOST_DEVICES, MOST_THREADS = 256, 4096
MOST_EVENTS = 6_000_000  # which take up to 220 bytes each

Rows = list[tuple[float, float, int, int, int]]
"""Begin, end, kind, name and correlation of events."""


@dataclass
class Collected:
    """Events by device and by thread; times in any unit, from any moment on."""

    unit: float  # seconds of a unit of time
    names: dict[str, int] = field(default_factory=dict)
    devices: dict[str, Rows] = field(default_factory=lambda: defaultdict(list))
    threads: dict[str, Rows] = field(default_factory=lambda: defaultdict(list))
    models: dict[str, str] = field(default_factory=dict)  # by device
    steps: list[tuple[float, float]] = field(default_factory=list)
    recorded: list[float | None] = field(default_factory=lambda: [None, None])
    unknown: Counter[str] = field(default_factory=Counter)
    count: int = 0  # of the events of devices and threads

    def _add(
        self, row: Rows, name: str, kind: Kind, begin: float, end: float, correlation: int
    ) -> None:
        """Add an event to the row of a device or a thread."""
        self.count += 1
        if self.count > MOST_EVENTS:
            raise ValueError(f"it has more than {MOST_EVENTS:,} events: record fewer steps")
        row.append((begin, end, kind, self._number(name), correlation))

    def _number(self, name: str) -> int:
        """A name's position."""
        return self.names.setdefault(name, len(self.names))

    def on_device(
        self, device: str, kind: Kind, name: str, begin: float, end: float, correlation: int
    ) -> None:
        """Add what a device did."""
        name = name[:LONGEST]
        kind = device_kind(name, kind)
        self._add(self.devices[device], name, kind, begin, end, correlation)

    def on_host(
        self, thread: str, kind: Kind, name: str, begin: float, end: float, correlation: int
    ) -> None:
        """Add what a thread did."""
        name = name[:LONGEST]
        if kind is not Kind.PYTHON and STEP.fullmatch(name):
            self.steps.append((begin, end))
            return
        if is_wait(name) if kind is not Kind.PYTHON else name.endswith(" block_until_ready"):
            kind = Kind.WAIT
        elif name.startswith("$profiler.py:"):
            if name.endswith(" start_trace"):
                self.recorded[0] = end
            elif name.endswith(" stop_trace"):
                self.recorded[1] = begin
        self._add(self.threads[thread], name, kind, begin, end, correlation)

    def trace(self, profiler: str, rank: int | None = None) -> Trace:
        """The trace, in seconds from its first event.

        Raises:
            ValueError: it has no events, too many devices or threads, or impossible times.
        """
        if not (self.count or self.steps):
            raise ValueError("it has no events of a device or a thread")
        for what, number, most in (
            ("devices", len(self.devices), MOST_DEVICES),
            ("threads", len(self.threads), MOST_THREADS),
        ):
            if number > most:
                raise ValueError(f"it has {number:,} {what}, and at most {most:,} are read")
        rows = [row for rows in (self.devices, self.threads) for row in rows.values()]
        origin = min((event[0] for row in rows for event in row), default=0.0)
        last = max((event[1] for row in rows for event in row), default=0.0)
        if not (last - origin) * self.unit < LONGEST_S:
            raise ValueError("its times are more than a year apart")

        def seconds(times: object) -> np.ndarray:
            return (np.asarray(times, np.float64) - origin) * self.unit

        def made(rows: Rows) -> Events:
            columns = np.array(rows, np.float64).reshape(-1, 5)
            begin, end = seconds(columns[:, 0]), seconds(columns[:, 1])
            order = np.lexsort((-end, begin))
            kind, name, correlation = columns[order, 2:].T
            return Events(
                begin[order], end[order], kind.astype(np.int8), name.astype(np.int32),
                correlation.astype(np.int64),
            )  # fmt: skip

        begin, end = self.recorded
        recorded = None
        if begin is not None and end is not None and begin < end:
            recorded = (float(seconds(begin)), float(seconds(end)))
        return Trace(
            profiler,
            list(self.names),
            [Row(name, made(self.devices[name]), self.models.get(name, ""))
             for name in sorted(self.devices, key=_by_number)],
            [Row(name, made(rows)) for name, rows in self.threads.items()],
            seconds(sorted(self.steps)).reshape(-1, 2),
            recorded,
            rank,
            dict(self.unknown),
        )  # fmt: skip


def _by_number(name: str) -> tuple[str, int, str]:
    kind, _, number = name.partition(":")
    return kind, int(number) if number.isdigit() else 0, name
