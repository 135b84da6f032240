"""Spans: named periods of a process's wall time.

Spans are exclusive: an inner span's time is subtracted from the outer one, so all spans and
``other`` add up to the wall time. Callers wait for device work before they close its span.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

NAMES = (
    "env", "act", "input", "transfer", "replay", "learn", "publish", "log", "checkpoint", "wait",
    "eval", "compile", "fused",
)  # fmt: skip
"""Spans of the main process, in the order of reports."""

PHASES: dict[str, str] = {
    "env": "environment steps, resets and observations",
    "act": "choosing actions",
    "replay": "choosing and gathering batches from stored experience",
    "input": "loading and augmenting a data set",
    "learn": "learning",
    "launch": "launching a device's operations",
    "fused": "acting, stepping and learning in one program",
    "transfer": "copies and syncs between host and device",
    "communicate": "averaging across devices",
    "publish": "publishing parameters",
    "ipc": "moving data between processes",
    "io": "checkpoints, logs, rendering",
    "eval": "evaluation episodes",
    "compile": "tracing and compiling again",
    "wait": "waiting, nothing to do",
    "other": "other",
}
"""Phases and their descriptions, in the order of reports."""

OF_SPAN = {name: name for name in (*NAMES, "other")} | {"log": "io", "checkpoint": "io"}
"""Span to phase."""

MAX_TRACE_EVENTS = 1_000_000


@dataclass(frozen=True)
class Work:
    """What a thread or process other than the main one has done so far."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])  # by span
    turns: int = 0  # requests that it answered
    square: float = 0.0  # sum of the squares of their durations, in s²


class Span:
    """An open span; use it as a context manager, through `Spans.span`."""

    __slots__ = ("_spans", "children", "name", "start")

    def __init__(self, spans: Spans, name: str) -> None:
        self._spans = spans
        self.name = name
        self.start = self.children = 0

    def __enter__(self) -> Span:
        self._spans.stack.append(self)
        self.start = time.perf_counter_ns()
        return self

    def __exit__(self, *error: object) -> None:
        end = time.perf_counter_ns()
        self._spans.stack.pop()
        self._spans.add(self.name, end - self.start, net=end - self.start - self.children)
        self._spans.event(self.name, self.start, end)


class Spans:
    """Sums span times of one process; with `trace` it also keeps events for `chrome_trace`."""

    def __init__(self, trace: bool = False) -> None:
        self.trace = trace
        self.totals: dict[str, int] = {}
        self.stack: list[Span] = []
        self._events: list[tuple[str, int, int]] = []
        self.dropped_events = 0

    def span(self, name: str) -> Span:
        """A context manager that adds its duration to `name`."""
        return Span(self, name)

    def add(self, name: str, duration: int, net: int | None = None) -> None:
        """Add nanoseconds to a span (hot loops time themselves and add once).

        `duration` is subtracted from the enclosing open span; `net` (by default the same) is
        without inner spans.
        """
        self.totals[name] = self.totals.get(name, 0) + (duration if net is None else net)
        if self.stack:
            self.stack[-1].children += duration

    def event(self, name: str, start: int, end: int) -> None:
        """Keep an event for the trace; `start` and `end` are `time.perf_counter_ns` readings."""
        if not self.trace:
            return
        if len(self._events) < MAX_TRACE_EVENTS:
            self._events.append((name, start, end))
        else:
            self.dropped_events += 1

    def seconds(self, name: str) -> float:
        """Total exclusive time of a span, in seconds."""
        return self.totals.get(name, 0) / 1e9

    def phases(self, wall_s: float) -> dict[str, float]:
        """Share of `wall_s` by span, with all spans and ``other``; sums to 1."""
        wall_s = max(wall_s, 1e-9)
        shares = {name: self.seconds(name) / wall_s for name in NAMES}
        shares["other"] = max(0.0, 1.0 - sum(shares.values()))
        total = sum(shares.values())
        return {name: share / total for name, share in shares.items()}

    def chrome_trace(self) -> dict[str, Any]:
        """The kept events in the Chrome trace format (chrome://tracing, Perfetto)."""
        pid = os.getpid()
        events: list[dict[str, Any]] = [
            {"name": name, "ph": "X", "pid": pid, "tid": 0, "ts": start / 1e3,
             "dur": (end - start) / 1e3, "cat": "flatout"}
            for name, start, end in sorted(self._events, key=lambda event: event[1])
        ]  # fmt: skip
        if self.dropped_events:
            note = f"{self.dropped_events} later events were not kept"
            events.append({"name": note, "ph": "I", "pid": pid, "tid": 0, "ts": 0, "s": "g"})
        return {"traceEvents": events, "displayTimeUnit": "ms"}


@dataclass(frozen=True)
class Times:
    """A process's wall time, in seconds."""

    wall_s: float  # since the run's clock started
    startup_s: float  # until training began
    compile_s: float  # tracing and compiling within `startup_s`
    compile_later_s: float  # tracing and compiling after it
    phases: dict[str, float]  # shares of `wall_s`, see `Spans.phases`


class RunClock:
    """A run's wall time, by the clock of its spans.

    Args:
        spans: the main process's; they have no time from before the start.
        started: `time.perf_counter_ns` at the run's start; by default now.
    """

    def __init__(self, spans: Spans, started: int | None = None) -> None:
        self._spans = spans
        now = time.perf_counter_ns()
        self._started = now if started is None else min(started, now)
        self._ready: int | None = None
        self._compiled = 0

    def ready(self) -> None:
        """Mark the end of start-up."""
        self._ready = time.perf_counter_ns()
        self._compiled = self._spans.totals.get("compile", 0)

    def elapsed_s(self) -> float:
        """Seconds since the run's start."""
        return (time.perf_counter_ns() - self._started) / 1e9

    def times(self) -> Times:
        """The times up to now; before `ready` everything is start-up."""
        now = time.perf_counter_ns()
        compiled = self._spans.totals.get("compile", 0)
        ready, before = (now, compiled) if self._ready is None else (self._ready, self._compiled)
        wall_s = (now - self._started) / 1e9
        return Times(
            wall_s, (ready - self._started) / 1e9, before / 1e9, (compiled - before) / 1e9,
            self._spans.phases(wall_s),
        )  # fmt: skip
