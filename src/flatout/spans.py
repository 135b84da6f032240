"""Spans: named periods of a process's wall time, which samplers, learners and schedules measure.

Spans are exclusive: an inner span's time is subtracted from the outer one, so all spans and
``other`` add up to the wall time. Callers wait for device work before they close its span.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from flatout_explain.errors import UsageError
from flatout_explain.phases import MARKABLE, no_phase

NAMES = (
    "env", "act", "input", "transfer", "replay", "learn", "publish", "log", "checkpoint", "wait",
    "eval", "compile", "fused", "plan",
)  # fmt: skip
"""Spans of the main process, in the order of reports."""

PHASE_WORDS: dict[str, str] = {
    "env": "stepping environments",
    "act": "choosing actions",
    "input": "waiting for examples",
    "transfer": "moving data between devices",
    "replay": "sampling replay",
    "learn": "gradient steps",
    "launch": "launching operations",
    "fused": "acting, stepping, learning",
    "communicate": "averaging across devices",
    "publish": "handing parameters to acting",
    "ipc": "moving data between processes",
    "io": "writing logs and checkpoints",
    "log": "logging",
    "checkpoint": "writing checkpoints",
    "wait": "waiting",
    "eval": "evaluation",
    "compile": "compiling",
    "plan": "measuring placements",
    "other": "start-up, imports and the rest",
}
"""The work of a run of Flatout in each phase or span, for its tables and its verdict."""


def phase_words(name: str, updates: int) -> str:
    """Name the work of a run in a phase of its steady state, in which it made `updates`."""
    words = PHASE_WORDS | {"other": "the rest"}
    if not updates:
        words |= {"replay": "storing replay", "fused": "acting, stepping"}
    return words[name]


OF_SPAN = {name: name for name in (*NAMES, "other")} | {
    "log": "io", "checkpoint": "io", "plan": "other",
}  # fmt: skip
"""The phase of each span. Measuring placements is not a part of the steady state, see `steady` of
`flatout.storage.span_records`."""

MAX_TRACE_EVENTS = 1_000_000


Function = TypeVar("Function", bound=Callable[..., Any])


class PhaseMark:
    """A phase of the user's code, as a context manager or a decorator; it does nothing itself.

    The probe of `flatout explain` finds it in the program's source.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> PhaseMark:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def __call__(self, function: Function) -> Function:
        return function


PHASE_MARKS = {name: PhaseMark(name) for name in MARKABLE}


def phase(name: str) -> PhaseMark:
    """Mark a block, or as a decorator a function, as one phase for `flatout explain`.

    ``with flatout.phase("env"):`` makes all time in the block count as stepping environments.
    Without `flatout explain` it does nothing.

    Raises:
        UsageError: the name is no phase.
    """
    try:
        return PHASE_MARKS[name]
    except (KeyError, TypeError):
        raise UsageError(no_phase(name)) from None


class ResetTimes(NamedTuple):
    """The resets at which environments began their next episodes so far.

    `waited` is a part of the seconds of stepping. It equals `seconds` unless resets happen in the
    background. A vector environment that resets within its own step counts none.
    """

    number: float = 0
    seconds: float = 0.0  # that the resets took
    square: float = 0.0  # the sum of the squares of what each took, in s²
    waited: float = 0.0  # that steps waited for them

    def plus(self, other: ResetTimes) -> ResetTimes:
        """Return the sums of both."""
        return ResetTimes(*map(sum, zip(self, other, strict=True)))

    def minus(self, earlier: ResetTimes) -> ResetTimes:
        """Return what was added since `earlier`."""
        return ResetTimes(*(max(a - b, 0) for a, b in zip(self, earlier, strict=True)))


NO_RESETS = ResetTimes()


@dataclass(frozen=True)
class Work:
    """The time that a thread or process other than the main one has spent on work so far. For the
    main one, whose times are spans, it has the resets alone."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])  # by span
    turns: int = 0  # requests that it has answered
    square: float = 0.0  # the sum of the squares of the requests' durations, in s²
    resets: ResetTimes = NO_RESETS  # of the environments that it steps
    spares: int = 0  # how many of these have a spare
    spare_mb: float = 0.0  # the memory of all spares
    clock_s: float = 0.0  # of another machine: by how much its clock may differ from what is known


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
    """The sums of one thread's span times; with `trace` also the events for `chrome_trace`.

    Attributes:
        totals: exclusive nanoseconds by span.
        stack: the open spans, the innermost one last.
        dropped_events: events after the first `MAX_TRACE_EVENTS`, which are not kept.
    """

    def __init__(self, trace: bool = False) -> None:
        self.trace = trace
        self.totals: dict[str, int] = {}
        self.stack: list[Span] = []
        self._events: list[tuple[str, int, int]] = []
        self.dropped_events = 0

    def next(self) -> Spans:
        """Return spans whose sums begin at zero, and whose trace goes on from these."""
        spans = Spans(self.trace)
        spans._events, spans.dropped_events = self._events, self.dropped_events
        return spans

    def span(self, name: str) -> Span:
        """Return a context manager that adds its duration to the span `name`."""
        return Span(self, name)

    def add(self, name: str, duration: int, net: int | None = None) -> None:
        """Add nanoseconds to a span. Hot loops measure their own time and add the sum once.

        `duration` is subtracted from the enclosing open span. `net` is the duration without inner
        spans, by default the same.
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
        """Return the total exclusive time of a span, in seconds."""
        return self.totals.get(name, 0) / 1e9

    def phases(self, wall_s: float) -> dict[str, float]:
        """Return the share of `wall_s` by span, for all spans and ``other``. The sum is 1."""
        wall_s = max(wall_s, 1e-9)
        shares = {name: self.seconds(name) / wall_s for name in NAMES}
        shares["other"] = max(0.0, 1.0 - sum(shares.values()))
        total = sum(shares.values())
        return {name: share / total for name, share in shares.items()}

    def chrome_trace(self) -> dict[str, Any]:
        """Return the kept events in the Chrome trace format (chrome://tracing, Perfetto)."""
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
    """The parts of a run's wall time, in seconds."""

    wall_s: float  # since the run's clock started
    startup_s: float  # until training began
    compile_s: float  # tracing and compiling within `startup_s`
    compile_later_s: float  # tracing and compiling after it
    phases: dict[str, float]  # shares of `wall_s`, see `Spans.phases`


class RunClock:
    """A clock of a run's wall time, which `time.perf_counter_ns` measures as for spans.

    Args:
        spans: the spans of the main process, all of which begin after the run's start.
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
        """Return the seconds since the run's start."""
        return (time.perf_counter_ns() - self._started) / 1e9

    def times(self) -> Times:
        """Return the times up to now. Before `ready` all time is start-up."""
        now = time.perf_counter_ns()
        compiled = self._spans.totals.get("compile", 0)
        ready, before = (now, compiled) if self._ready is None else (self._ready, self._compiled)
        wall_s = (now - self._started) / 1e9
        return Times(
            wall_s, (ready - self._started) / 1e9, before / 1e9, (compiled - before) / 1e9,
            self._spans.phases(wall_s),
        )  # fmt: skip
