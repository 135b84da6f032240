"""The operators that a trace has recorded on the host, by the time that each takes itself."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from flatout.explain.report import duration, percent
from flatout.explain.trace.events import Events, Kind, Trace
from flatout.explain.trace.facts import duration_words
from flatout.spans import MARKABLE

XLA = re.compile(r"[a-z][\w.\-]*")
"""Names of XLA's operations; the runtime's own events in JAX's traces have others."""

SHOWN = 3  # operators in a sentence


@dataclass(frozen=True)
class Operators:
    """The operators that ran on the host in a trace's window."""

    profiler: str  # whose trace it is
    count: int  # how many were called
    # by name, the time of all threads without the operators called within; the largest first
    seconds: dict[str, float]

    @property
    def total(self) -> float:
        """The seconds of all of them."""
        return sum(self.seconds.values())

    def words(self, lasted: float) -> str:
        """Return a sentence about the operators of a recording; an empty text without any."""
        if not self.total:
            return ""
        names = ", ".join(
            f"`{name}` {percent(seconds / self.total)}"
            for name, seconds in list(self.seconds.items())[:SHOWN]
        )
        return (
            f"{self.profiler}'s profiler recorded {self.count:,} operators in "
            f"{duration(lasted)}; they took {duration_words(self.total)}, of which {names}"
        )


def operators(trace: Trace) -> Operators:
    """The operators of a trace."""
    sums: defaultdict[str, float] = defaultdict(float)
    begin, end = trace.window
    is_operator = XLA.fullmatch if trace.profiler != "PyTorch" else bool
    wanted = [bool(is_operator(name)) and name not in MARKABLE for name in trace.names]
    wanted = np.array(wanted, bool)  # without the program's own marks
    count = 0
    for row in trace.threads:
        events = row.events
        chosen = wanted[events.name] & np.isin(events.kind, (Kind.OPERATION, Kind.WAIT))
        chosen &= (events.begin >= begin) & (events.begin < end)
        count += int(chosen.sum())
        seconds = np.bincount(events.name[chosen], _own_times(events)[chosen])
        for name in np.flatnonzero(seconds):
            sums[trace.names[name]] += float(seconds[name])
    largest = sorted(sums, key=lambda name: -sums[name])
    return Operators(trace.profiler, count, {name: sums[name] for name in largest})


def _own_times(events: Events) -> np.ndarray:
    """The duration of each event of a thread, without the events within it."""
    around: list[int] = []  # the events that are open
    parents = np.full(len(events), -1)
    ends = events.end.tolist()
    for index, begin in enumerate(events.begin.tolist()):
        while around and ends[around[-1]] <= begin:
            around.pop()
        if around:
            parents[index] = around[-1]
        around.append(index)
    lasting = events.end - events.begin
    within = parents >= 0
    inner = np.bincount(parents[within], lasting[within], len(events))
    return np.maximum(lasting - inner, 0.0)
