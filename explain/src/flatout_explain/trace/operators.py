"""The operators that a trace has recorded on the host, by the time that each takes itself."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from flatout_explain.phases import MARKABLE
from flatout_explain.report import duration, percent
from flatout_explain.trace.events import Kind, Trace, begins_in
from flatout_explain.trace.intervals import nested

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
            f"{duration(lasted)}; they took {duration(self.total)}, of which {names}"
        )


def operators(trace: Trace) -> Operators:
    """Return the operators of a trace."""
    sums, count = defaultdict[str, float](float), 0
    is_operator = XLA.fullmatch if trace.profiler != "PyTorch" else bool
    # The program's own marks are none.
    wanted = [bool(is_operator(name)) and name not in MARKABLE for name in trace.names]
    for row in trace.threads:
        events = row.events
        chosen = begins_in(events, trace.window) & np.array(wanted)[events["name"]]
        chosen &= np.isin(events["kind"], (Kind.OPERATION, Kind.WAIT))
        spans, inner, _ = nested(events["begin"], events["end"])
        own = np.bincount(inner, spans[:, 1] - spans[:, 0], len(events))
        for name, seconds in zip(events["name"][chosen], own[chosen].tolist(), strict=True):
            sums[trace.names[name]] += seconds
        count += int(chosen.sum())
    largest = sorted(sums.items(), key=lambda item: -item[1])
    return Operators(trace.profiler, count, {name: seconds for name, seconds in largest if seconds})
