"""Why a device idles: the work of the host before each of the device's next operations.

A device that waits has either not been given work yet (the host is late), or has work in its queue
that waits for something else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from flatout.explain.trace import names
from flatout.explain.trace.collecting import NONE
from flatout.explain.trace.events import Events, Kind, Row, Trace
from flatout.explain.trace.intervals import (
    NOTHING,
    clip,
    length,
    meeting,
    overlap,
    union,
    union_of,
    without,
)

LONG_S = 1e-3
"""Host code that runs at least this long without launching anything has a cause of its own."""

Lines = defaultdict[str, defaultdict[str, float]]
Pieces = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

LONG_CALLS = 40  # calls among which the longest one of idle time is looked for
THREADS = 32  # threads that a waiting thread may be waiting for

PARTS = (
    "launch", "input", "env", "io", "compile", "transfer", "host", "unknown", "queued", "act",
    "replay", "eval", "ipc", "wait", "communicate",
)  # fmt: skip
"""Why a device idles. `launch`: the host launches operations, or prepares to; `transfer`: it waits
for a device; `host`: its own code launches nothing; `unknown`: nothing is recorded; `queued`: it is
not late. Those from `act` on are known only where the program has marked them."""

TRANSFER = PARTS.index("transfer")

BUSY = ("learn", "communicate", "copy")
"""The work of a device: it computes; it only exchanges data with other devices; it only copies."""


@dataclass
class DeviceUse:
    """A device's time in the window, and the causes of its idle time."""

    device: Row
    window: tuple[float, float]
    parts: dict[str, np.ndarray]  # disjoint intervals, by `BUSY` and by the cause of `PARTS`
    # by cause, seconds by name of the host's event
    lines: Lines = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))
    # by cause, seconds that marks of the program decided
    marked: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    # length and name of the longest single call of the driver in idle time
    longest: tuple[float, str] = (0.0, "")

    @property
    def seconds(self) -> float:
        """The window's length."""
        return self.window[1] - self.window[0]

    @property
    def busy(self) -> float:
        """The share of the window in which it computes, exchanges or copies."""
        return sum(map(self.share, BUSY))

    def share(self, part: str) -> float:
        """Return the share of the window that a part takes."""
        return length(self.parts.get(part, NOTHING)) / self.seconds


def causes(trace: Trace, device: Row, window: tuple[float, float], host: Host) -> DeviceUse:
    """Divide a device's time."""
    events = device.events

    def busy(*kinds: Kind) -> np.ndarray:
        some = events.where(np.isin(events.kind, kinds))
        return clip(union(some.begin, some.end), *window)

    computes, exchanges = busy(Kind.KERNEL), busy(Kind.COLLECTIVE)
    copies = without(without(busy(Kind.COPY, Kind.SET), computes), exchanges)
    parts = {"learn": computes, "communicate": without(exchanges, computes), "copy": copies}
    result = DeviceUse(device, window, parts)
    gaps = without(np.array([window]), clip(union(events.begin, events.end), *window))
    if not len(gaps):
        return result
    after = np.searchsorted(events.begin, gaps[:, 1])
    last = after >= len(events)  # nothing follows
    after = np.minimum(after, len(events) - 1)
    launched, thread = host.launches(events.correlation[after])
    launched, thread = np.where(last, np.nan, launched), np.where(last, NONE, thread)
    queued = launched < gaps[:, 0]
    found = defaultdict(list)
    found["queued"].append(gaps[queued])
    for number in np.unique(thread[~queued]):
        late = gaps[~queued & (thread == number)]
        host.divide(int(number), late, found, result)
    for cause, sets in found.items():
        if len(spans := union_of([parts.get(cause, NOTHING), *sets])):
            parts[cause] = spans
    result.longest = host.longest(gaps[~queued])
    return result


def _longest_calls(events: Events) -> Iterator[tuple[float, float, int]]:
    """Begin, end and name of a thread's longest calls of the driver."""
    calls = events.where(np.isin(events.kind, (Kind.CALL, Kind.WAIT)))
    for at in np.argsort(calls.begin - calls.end, kind="stable")[:LONG_CALLS]:
        yield float(calls.begin[at]), float(calls.end[at]), int(calls.name[at])


class Host:
    """The host's threads, as causes of a device's idle time."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._threads = [row.events for row in trace.threads]
        launched = np.concatenate([row.events.correlation for row in trace.devices] or [[]])
        self._launched = np.unique(launched[launched != NONE])
        correlations, times, threads = [], [], []
        for number, events in enumerate(self._threads):
            calls = np.isin(events.correlation, self._launched)
            correlations.append(events.correlation[calls])
            times.append(events.begin[calls])
            threads.append(np.full(int(calls.sum()), number))
        every = np.concatenate(correlations or [[]])
        order = np.argsort(every, kind="stable")
        self._correlations = every[order]
        self._times = np.concatenate(times or [[]])[order]
        self._by = np.concatenate(threads or [[]])[order].astype(int)
        self._calls = np.sort(self._times)  # of all threads
        calls = [
            (float(begin), float(end), int(name))
            for events in self._threads
            for begin, end, name in _longest_calls(events)
        ]
        self._longest = sorted(calls, key=lambda call: call[0] - call[1])[:LONG_CALLS]
        self._pieces: dict[int, Pieces] = {}
        counts = [len(some) for some in times]
        spans = [float((e.end - e.begin).max()) if len(e) else 0.0 for e in self._threads]
        by_use = sorted(range(len(counts)), key=lambda i: (-counts[i], -spans[i]))
        python = [i for i in by_use if (self._threads[i].kind == Kind.PYTHON).any()]
        self._main, self._by_use = (python or by_use)[:1], by_use

    def launches(self, correlation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """When operations of a device were launched, nan if that is unknown, and by which
        thread."""
        if not len(self._correlations):
            return np.full(len(correlation), np.nan), np.full(len(correlation), NONE)
        at = np.searchsorted(self._correlations, correlation)
        at = np.minimum(at, len(self._correlations) - 1)
        known = (self._correlations[at] == correlation) & (correlation != NONE)
        return np.where(known, self._times[at], np.nan), np.where(known, self._by[at], NONE)

    def divide(
        self, thread: int, late: np.ndarray, found: dict[str, list[np.ndarray]],
        result: DeviceUse,
    ) -> None:  # fmt: skip
        """Divide idle time before launches by a thread among its causes.

        The thread's own work explains it, then that of the thread that runs the program. Where
        these wait for a device that idles, they wait for another thread.
        """
        own = list(dict.fromkeys(([thread] if thread != NONE else []) + self._main))
        for index in own:
            late = self._attribute(index, late, found, result)
        waits = [self._divided(index) for index in own]
        waits = [pieces[(causes == TRANSFER) & ~marked] for pieces, causes, _, marked in waits]
        waiting = overlap(late, union_of(waits))
        found["unknown"].append(without(late, waiting))
        for index in [other for other in self._by_use if other not in own][:THREADS]:
            waiting = self._attribute(index, waiting, found, result)
        for index in own:
            waiting = self._attribute(index, waiting, found, result, waits=True)

    def _attribute(
        self, thread: int, late: np.ndarray, found: dict[str, list[np.ndarray]],
        result: DeviceUse, waits: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """Divide intervals by a thread's work; returns those in which it did nothing, or only
        waited for a device, unless `waits`."""
        pieces, causes, texts, marked = self._divided(thread)
        within = meeting(pieces, late)
        if not waits:
            within &= (causes != TRANSFER) | marked
        pieces, causes, texts, marked = (each[within] for each in (pieces, causes, texts, marked))
        if not len(pieces) or not len(late):
            return late
        points = np.unique(np.concatenate([late.ravel(), pieces.ravel()]))
        middles = (points[1:] + points[:-1]) / 2
        at = np.searchsorted(pieces[:, 0], middles, "right") - 1
        covered = (at >= 0) & (middles < pieces[np.maximum(at, 0), 1])
        gap = np.searchsorted(late[:, 0], middles, "right") - 1
        inside = (gap >= 0) & (middles < late[np.maximum(gap, 0), 1])
        both = covered & inside
        spans = np.stack([points[:-1][both], points[1:][both]], axis=1)
        of_span, seconds = causes[at[both]], spans[:, 1] - spans[:, 0]
        for index in np.unique(of_span):
            chosen = of_span == index
            found[PARTS[index]].append(spans[chosen])
            result.marked[PARTS[index]] += float(seconds[chosen & marked[at[both]]].sum())
            by_name = np.bincount(texts[at[both]][chosen], seconds[chosen])
            for name in np.flatnonzero(by_name):
                result.lines[PARTS[index]][self._trace.names[name]] += float(by_name[name])
        rest = inside & ~covered
        return union(points[:-1][rest], points[1:][rest])

    def longest(self, late: np.ndarray) -> tuple[float, str]:
        """The longest part of a single call of the driver in some intervals, and its name."""
        found = [
            (length(overlap(np.array([[begin, end]]), late)), self._trace.names[name])
            for begin, end, name in self._longest
        ]
        return max(found, default=(0.0, ""))

    def _divided(self, thread: int) -> Pieces:
        """A thread's time as disjoint pieces ``[N, 2]``, each with its cause (its position in
        `PARTS`), a name, and whether a mark of the program decided the cause.

        An event that has a cause gives it to all events within it, except to marks.
        """
        if thread not in self._pieces:
            self._pieces[thread] = self._divide_thread(thread)
        return self._pieces[thread]

    def _divide_thread(self, thread: int) -> Pieces:
        events = self._threads[thread]
        own = self._own_causes(events)
        pieces: list[tuple[float, float]] = []
        labels: list[tuple[int, int, bool]] = []
        # end, cause that it gives to all within, cause, name, the program's line or NONE, marked
        open_events: list[tuple[float, str | None, str, int, int, bool]] = []
        programs = [
            kind == Kind.PYTHON and names.is_program(self._trace.names[name])
            for kind, name in zip(events.kind.tolist(), events.name.tolist(), strict=True)
        ]
        at = 0.0

        def close(until: float) -> None:
            nonlocal at
            while open_events:
                end, _, cause, name, line, marked = open_events[-1]
                stop = min(end, until)
                if stop > at:
                    pieces.append((at, stop))
                    labels.append((PARTS.index(cause), name if line == NONE else line, marked))
                    at = stop
                if end > until:
                    return
                open_events.pop()

        for begin, end, cause, name, program, kind in zip(
            events.begin.tolist(), events.end.tolist(), own, events.name.tolist(), programs,
            events.kind.tolist(), strict=True,
        ):  # fmt: skip
            close(begin)
            at = max(at, begin)
            mark = names.marked_part(self._trace.names[name], Kind(kind))
            given, here, line, marked = cause, cause or "launch", name if program else NONE, False
            if mark is not None:
                given, here, marked = mark, mark, True
            if open_events:
                _, around, around_here, around_name, around_line, around_marked = open_events[-1]
                line = around_line if line == NONE else line
                if around is not None and mark is None:
                    given, here, name, line = around, around_here, around_name, around_line
                    marked = around_marked
            open_events.append((end, given, here, name, line, marked))
        close(float("inf"))
        causes, texts, marks = np.array(labels, int).reshape(-1, 3).T
        return np.array(pieces).reshape(-1, 2), causes, texts, marks.astype(bool)

    def _own_causes(self, events: Events) -> list[str | None]:
        """The cause that each event of a thread is itself; None if its surroundings decide."""
        calls = self._calls
        launches = np.searchsorted(calls, events.end) - np.searchsorted(calls, events.begin)
        idle = (launches == 0) & (events.end - events.begin >= LONG_S)
        found: list[str | None] = []
        for kind, name, alone in zip(
            events.kind.tolist(), events.name.tolist(), idle.tolist(), strict=True
        ):
            text = self._trace.names[name]
            cause = names.part(text, Kind(kind))
            if cause is None and kind == Kind.WAIT:
                cause = "transfer"
            elif cause is None and alone and kind in (Kind.PYTHON, Kind.RANGE, Kind.OPERATION):
                cause = None if names.BACKWARD.search(text) else "host"
            found.append(cause)
        return found
