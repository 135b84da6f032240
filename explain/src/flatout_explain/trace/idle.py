"""Why a device idles: the work of the host before each of the device's next operations.

A device that waits has either not been given work yet (the host is late), or has work in its queue
that waits for something else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flatout_explain.trace import names
from flatout_explain.trace.events import EVENT, NONE, Kind, Row, Trace, spans
from flatout_explain.trace.intervals import (
    NOTHING,
    clip,
    divided,
    length,
    nested,
    overlap,
    union,
    union_of,
    without,
)

LONG_S = 1e-3
"""Host code that runs at least this long without launching anything has a cause of its own."""

THREADS = 32  # threads that a waiting thread may be waiting for

PARTS = (
    "launch", "input", "env", "io", "compile", "transfer", "other", "unknown", "queued", "act",
    "replay", "eval", "ipc", "wait", "communicate",
)  # fmt: skip
"""Why a device idles. `launch`: the host launches operations, or prepares to; `transfer`: it waits
for a device; `other`: its own code launches nothing; `unknown`: nothing is recorded; `queued`: it
is not late. Those from `act` on are known only where the program has marked them."""

TRANSFER = PARTS.index("transfer")

BUSY = ("learn", "communicate", "copy")
"""The work of a device: it computes; it only exchanges data with other devices; it only copies."""

WORK = np.dtype(
    [("begin", "f8"), ("end", "f8"), ("name", "i4"), ("call", "i4"), ("cause", "i1"),
     ("marked", "?")],
    align=True,
)  # fmt: skip
"""A piece of a thread's time: the name of the program's line or the event that does it; that of the
driver's call that runs, or `NONE`; the position of its cause in `PARTS`; and whether a mark of the
program decided that."""


@dataclass(frozen=True)
class DeviceUse:
    """A device's time in the window, and the causes of its idle time."""

    trace: Trace
    device: Row
    window: tuple[float, float]
    parts: dict[str, np.ndarray]  # disjoint intervals, by `BUSY` and by the cause of `PARTS`
    hidden: float  # seconds in which it exchanges data while it computes
    work: np.ndarray  # the host's work in its idle time (`WORK`)

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

    def work_of(self, part: str) -> np.ndarray:
        """Return the host's work in a part of the idle time."""
        return self.work[self.work["cause"] == (PARTS.index(part) if part in PARTS else NONE)]

    @property
    def longest_call(self) -> tuple[float, str]:
        """Length and name of the longest call of the driver in the idle time."""
        calls = self.work[self.work["call"] != NONE]
        if not len(calls):
            return 0.0, ""
        at = lengths(calls).argmax()
        return float(lengths(calls)[at]), self.trace.names[calls["call"][at]]


def lengths(work: np.ndarray) -> np.ndarray:
    """Return the seconds of events, or of pieces of work."""
    return work["end"] - work["begin"]


def causes(device: Row, window: tuple[float, float], host: Host) -> DeviceUse:
    """Divide a device's time."""
    events = device.events

    def busy(*kinds: Kind) -> np.ndarray:
        some = events[np.isin(events["kind"], kinds)]
        return clip(union(some["begin"], some["end"]), *window)

    computes, exchanges = busy(Kind.KERNEL), busy(Kind.COLLECTIVE)
    copies = without(without(busy(Kind.COPY, Kind.SET), computes), exchanges)
    gaps = without(np.array([window]), clip(union(events["begin"], events["end"]), *window))
    after = np.searchsorted(events["begin"], gaps[:, 1])
    last = after >= len(events)  # nothing follows
    launched, thread = host.launches(events["correlation"][np.minimum(after, len(events) - 1)])
    launched, thread = np.where(last, np.nan, launched), np.where(last, NONE, thread)
    queued = launched < gaps[:, 0]
    unknown, done = list[np.ndarray](), [np.empty(0, WORK)]
    for number in np.unique(thread[~queued]):
        rest, work = host.divide(int(number), gaps[~queued & (thread == number)])
        unknown.append(rest)
        done += work
    work = np.concatenate(done)
    idle = {"queued": [gaps[queued]], "unknown": unknown}
    idle |= {
        PARTS[cause]: [spans(work[work["cause"] == cause])] for cause in np.unique(work["cause"])
    }
    exchanging = without(exchanges, computes)
    parts = {"learn": computes, "communicate": exchanging, "copy": copies}
    parts |= {part: union_of([parts.get(part, NOTHING), *sets]) for part, sets in idle.items()}
    hidden = length(overlap(exchanges, computes))
    return DeviceUse(host.trace, device, window, parts, hidden, work)


class Host:
    """The host's threads, as causes of a device's idle time."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._threads = [row.events for row in trace.threads]
        self._work: dict[int, np.ndarray] = {}
        nothing = np.empty(0, EVENT)
        given = np.concatenate([nothing, *(row.events for row in trace.devices)])["correlation"]
        given = given[given != NONE]
        found = [events[np.isin(events["correlation"], given)] for events in self._threads]
        calls = np.concatenate([nothing, *found])
        order = np.argsort(calls["correlation"], kind="stable")
        self._launches = calls[order]
        counts = [len(some) for some in found]
        self._by = np.repeat(np.arange(len(found)), np.array(counts, int))[order]
        self._times = np.sort(calls["begin"])  # of all threads
        longest = [float(lengths(events).max()) for events in self._threads]
        by_use = sorted(range(len(counts)), key=lambda i: (-counts[i], -longest[i]))
        python = [i for i in by_use if (self._threads[i]["kind"] == Kind.PYTHON).any()]
        self._main, self._by_use = (python or by_use)[:1], by_use
        main = [self._threads[i] for i in self._main]
        calls = (name for events in main for name in events["name"][events["kind"] == Kind.PYTHON])
        self._folder = names.folder(map(self._text, calls))

    def _text(self, name: int) -> str:
        return self.trace.names[name]

    def launches(self, correlation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return when operations of a device were launched (nan if that is unknown), and by which
        thread."""
        if not len(self._launches):
            return np.full(len(correlation), np.nan), np.full(len(correlation), NONE)
        at = np.searchsorted(self._launches["correlation"], correlation)
        at = np.minimum(at, len(self._launches) - 1)
        known = (self._launches["correlation"][at] == correlation) & (correlation != NONE)
        begin = np.where(known, self._launches["begin"][at], np.nan)
        return begin, np.where(known, self._by[at], NONE)

    def divide(self, thread: int, late: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Find the host's work in idle time that ends with launches by a thread.

        The thread's own work explains it, then that of the thread that runs the program. Where
        these wait for a device that idles, they wait for another thread.

        Returns:
            The intervals in which nothing was done, and pieces of work.
        """
        own = list(dict.fromkeys(([thread] if thread != NONE else []) + self._main))
        done = list[np.ndarray]()
        for index in own:
            late = _attribute(self._working(index), late, done)
        waits = [work[_waits(work)] for work in map(self.work, own)]
        waiting = overlap(late, union_of([spans(work) for work in waits]))
        rest = without(late, waiting)
        for index in [other for other in self._by_use if other not in own][:THREADS]:
            waiting = _attribute(self._working(index), waiting, done)
        for work in waits:
            waiting = _attribute(work, waiting, done)
        return rest, done

    def _working(self, thread: int) -> np.ndarray:
        """Return a thread's work without that in which it only waits for a device."""
        work = self.work(thread)
        return work[~_waits(work)]

    def work(self, thread: int) -> np.ndarray:
        """Return a thread's time as disjoint pieces (`WORK`).

        An event that has a cause gives it to all events within it, except to marks.
        """
        if thread not in self._work:
            self._work[thread] = self._divided(self._threads[thread])
        return self._work[thread]

    def _divided(self, events: np.ndarray) -> np.ndarray:
        begin, end = events["begin"], events["end"]
        pieces, inner, around = nested(begin, end)
        times = self._times
        launches = np.searchsorted(times, end) - np.searchsorted(times, begin)
        alone = (launches == 0) & (end - begin >= LONG_S)
        alone &= np.isin(events["kind"], (Kind.PYTHON, Kind.RANGE, Kind.OPERATION))
        # By event: its own cause, whether a mark says so, the event that gives it its cause, and
        # the program's line around it.
        causes, marked = list[str | None](), list[bool]()
        deciding, lines = list[int](), list[int]()
        columns = around.tolist(), events["name"].tolist(), map(Kind, events["kind"]), alone
        for event, (parent, name, kind, idle) in enumerate(zip(*columns, strict=True)):
            text = self._text(name)
            mark, cause = names.marked_part(text, kind), names.part(text, kind)
            if cause is None and idle and not names.BACKWARD.search(text):
                cause = "other"
            inherits = mark is None and parent != NONE and causes[deciding[parent]] is not None
            own = kind is Kind.PYTHON and names.is_own(text, self._folder)
            causes.append(mark or cause)
            marked.append(mark is not None)
            deciding.append(deciding[parent] if inherits else event)
            lines.append(name if own else NONE if parent == NONE else lines[parent])
        source = np.array(deciding, int)[inner]
        part = np.array([PARTS.index(cause or "launch") for cause in causes], int)
        line = np.array(lines, int)
        name = np.where(line == NONE, events["name"], line)
        calls = np.isin(events["kind"][inner], (Kind.CALL, Kind.WAIT))
        call = np.where(calls, events["name"][inner], NONE)
        work = np.empty(len(pieces), WORK)
        columns = [*pieces.T, name[source], call, part[source], np.array(marked, bool)[source]]
        for of, column in zip(WORK.names or (), columns, strict=True):
            work[of] = column
        return work


def _attribute(work: np.ndarray, late: np.ndarray, done: list[np.ndarray]) -> np.ndarray:
    """Add a thread's work in some intervals to what was `done`; returns those without any."""
    found, at = divided(spans(work), late)
    pieces = work[at]
    pieces["begin"], pieces["end"] = found.T
    done.append(pieces)
    return without(late, found)


def _waits(work: np.ndarray) -> np.ndarray:
    """Return whether a thread only waits for a device in each piece of its work."""
    return (work["cause"] == TRANSFER) & ~work["marked"]
