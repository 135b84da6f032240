"""The time of all devices of a trace, or of several traces together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flatout.explain.report import place_words
from flatout.explain.trace import names
from flatout.explain.trace.events import Kind, Trace
from flatout.explain.trace.idle import DeviceUse, Host, causes
from flatout.explain.trace.intervals import clip, length, union

BINS = 600  # resolution of the timeline
SHOWN = 70  # characters of a name

PHASE = {"host": "other", "unknown": "other", "queued": "wait", "copy": "transfer"}
"""The phase of a part of a device's time; others have the phase of their name."""


@dataclass(frozen=True)
class Found:
    """The devices' time in one or more traces."""

    traces: Sequence[Trace]
    devices: list[tuple[str, DeviceUse]]  # by name

    @staticmethod
    def of(traces: Sequence[Trace]) -> Found:
        """The time of each device in its trace's window."""
        devices = []
        for number, trace in enumerate(traces):
            host, window = Host(trace), trace.window
            rank = f"rank {number if trace.rank is None else trace.rank} " if traces[1:] else ""
            devices += [
                (f"{rank}{device.name}", causes(trace, device, window, host))
                for device in trace.devices
                if window[1] > window[0] and len(device.events)
            ]
        return Found(traces, devices)

    def share(self, part: str) -> float:
        """The mean share of the devices' time that a part takes."""
        return float(np.mean([_share(use, part) for _, use in self.devices]))

    def lines(self, part: str) -> list[tuple[str, float]]:
        """Names of the host's events in a part of the idle time, with shares of the time, largest
        first."""
        total = sum(use.seconds for _, use in self.devices)
        seconds: defaultdict[str, float] = defaultdict(float)
        for _, use in self.devices:
            for name, value in use.lines[part].items():
                seconds[name] += value / total
        return sorted(seconds.items(), key=lambda line: -line[1])

    def line(self, part: str) -> str:
        """The name of what the host did most in a part of the idle time; empty if unknown."""
        return next((name for name, _ in self.lines(part)), "")

    @property
    def kernels(self) -> np.ndarray:
        """The durations of all kernels, in seconds."""
        return np.concatenate([_lasting(use) for _, use in self.devices])

    @property
    def overlapping(self) -> float:
        """The share of the devices' time in which they exchange data while they compute."""
        hidden = (length(_exchanging(use)) - length(use.communicates) for _, use in self.devices)
        return sum(hidden) / sum(use.seconds for _, use in self.devices)


def duration_words(seconds: float) -> str:
    """A short time: ``4.0 ms``, ``12 s``."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1.0 else f"{seconds:.3g} s"


def _share(use: DeviceUse, part: str) -> float:
    own = {"learn": use.computes, "communicate": use.communicates, "copy": use.copies}
    return length(own[part]) / use.seconds if part in own else use.share(part)


def shown(name: str) -> str:
    """A name for a reader."""
    if (where := names.frame(name)) is not None:
        return f"{place_words(where[:2])} {where[2]}"
    return name[:SHOWN] + ("..." if len(name) > SHOWN else "")


def line_words(name: str) -> str:
    """A Python function's place in brackets; empty for other names."""
    where = names.frame(name)
    return "" if where is None else f" ({place_words(where[:2])})"


def timeline(use: DeviceUse) -> tuple[tuple[float, float, str], ...]:
    """A device's timeline: for each of `BINS` bins what takes most of it."""
    begin, end = use.window
    edges = np.linspace(begin, end, BINS + 1)
    rows = {"learn": use.computes, "communicate": use.communicates, "transfer": use.copies}
    parts = list(rows.items())
    parts += [(PHASE.get(part, part), spans) for part, spans in use.idle.items()]
    filled = np.array([covered(spans, edges) for _, spans in parts])
    winner = filled.argmax(axis=0)
    found: list[tuple[float, float, str]] = []
    for at, index in enumerate(winner.tolist()):
        span = float(edges[at] - begin), float(edges[at + 1] - begin), parts[index][0]
        if found and found[-1][2] == span[2]:
            span = found.pop()[0], span[1], span[2]
        found.append(span)
    return tuple(found)


def covered(spans: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """How much of each bin some intervals cover."""
    if not len(spans):
        return np.zeros(len(edges) - 1)
    lengths = spans[:, 1] - spans[:, 0]
    before = np.concatenate([[0.0], np.cumsum(lengths)])
    at = np.searchsorted(spans[:, 0], edges, "right") - 1
    within = np.minimum(edges - spans[np.maximum(at, 0), 0], lengths[np.maximum(at, 0)])
    passed = np.where(at < 0, 0.0, before[np.maximum(at, 0)] + within)
    return np.diff(passed)


def _lasting(use: DeviceUse) -> np.ndarray:
    """The durations of the kernels in the window."""
    events = use.device.events
    begin, end = use.window
    inside = (events.kind == Kind.KERNEL) & (events.begin >= begin) & (events.begin < end)
    return (events.end - events.begin)[inside]


def _exchanging(use: DeviceUse) -> np.ndarray:
    events = use.device.events
    some = events.where(events.kind == Kind.COLLECTIVE)
    return clip(union(some.begin, some.end), *use.window)
