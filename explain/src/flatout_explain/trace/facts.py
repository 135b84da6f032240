"""The time of all devices of a trace, or of several traces together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from flatout_explain.ranking import LEAST_BLOCK_S, block_ends
from flatout_explain.report import place_words, shortened
from flatout_explain.trace import names
from flatout_explain.trace.events import Kind, Trace, begins_in
from flatout_explain.trace.idle import BUSY, PARTS, DeviceUse, Host, causes, lengths
from flatout_explain.trace.intervals import covered, segments, union_of

BINS = 600  # resolution of the timeline
SHOWN = 70  # characters of a name

PHASE = {"unknown": "other", "queued": "wait", "copy": "transfer"}
"""The phase of a part of a device's time; others have the phase of their name."""


@dataclass(frozen=True)
class Found:
    """The devices' time in one or more traces."""

    traces: Sequence[Trace]
    devices: list[tuple[str, DeviceUse]]  # by name

    @staticmethod
    def of(traces: Sequence[Trace]) -> Found:
        """Return the time of each device in its trace's window."""
        devices = []
        for number, trace in enumerate(traces):
            host, window = Host(trace), trace.window
            rank = f"rank {number if trace.rank is None else trace.rank} " if traces[1:] else ""
            devices += [
                (f"{rank}{device.name}", causes(device, window, host))
                for device in trace.devices
                if window[1] > window[0]
            ]
        return Found(traces, devices)

    def share(self, part: str) -> float:
        """Return the mean share of the devices' time that a part takes."""
        return float(np.mean([use.share(part) for _, use in self.devices]))

    def blocks(self, *parts: str) -> list[tuple[float, float]]:
        """Return the devices' seconds in some parts, and all their seconds, for each block of their
        windows: whole steps where the program has marked these, else equal blocks."""
        found: list[tuple[np.ndarray, np.ndarray]] = []
        for _, use in self.devices:
            (begin, end), steps = use.window, use.trace.steps[:, 1].tolist()
            least_s = 0.0 if steps else LEAST_BLOCK_S
            edges = np.array([begin, *block_ends(begin, end, steps, least_s)])
            some = union_of([use.parts[part] for part in parts if part in use.parts])
            found.append((covered(some, edges), np.diff(edges)))
        count = min(len(each) for each, _ in found)
        sums = (np.sum([rows[i][:count] for rows in found], axis=0).tolist() for i in (0, 1))
        return list(zip(*sums, strict=True))

    def marked(self, part: str) -> float:
        """Return the mean share of the devices' time that marks of the program say to be a part."""
        found = [(use.work_of(part), use.seconds) for _, use in self.devices]
        shares = [lengths(work)[work["marked"]].sum() / seconds for work, seconds in found]
        return float(np.mean(shares))

    def lines(self, part: str) -> list[tuple[str, float]]:
        """Return the names of the host's events in a part of the idle time, with their shares of
        the time, the largest first."""
        total = sum(use.seconds for _, use in self.devices)
        seconds: defaultdict[str, float] = defaultdict(float)
        for _, use in self.devices:
            by_name = np.bincount(use.work_of(part)["name"], lengths(use.work_of(part)))
            for name in np.flatnonzero(by_name):
                seconds[use.trace.names[name]] += float(by_name[name]) / total
        return sorted(seconds.items(), key=lambda line: -line[1])

    def line(self, part: str) -> str:
        """Return the name of what the host did most in a part of idle time; empty if unknown."""
        return next((name for name, _ in self.lines(part)), "")

    @property
    def kernels(self) -> np.ndarray:
        """The durations of all kernels that begin in the window, in seconds."""
        found = []
        for _, use in self.devices:
            events = use.device.events
            kernels = begins_in(events, use.window) & (events["kind"] == Kind.KERNEL)
            found.append(lengths(events[kernels]))
        return np.concatenate(found)

    @property
    def hidden(self) -> float:
        """The share of the devices' time in which they exchange data while they compute."""
        return float(np.mean([use.hidden / use.seconds for _, use in self.devices]))


def by_phase(share: Callable[[str], float]) -> dict[str, float]:
    """Return the shares of all parts of a device's time, above 0, by phase."""
    sums: defaultdict[str, float] = defaultdict(float)
    for part in dict.fromkeys((*BUSY, *PARTS)):
        sums[PHASE.get(part, part)] += share(part)
    return {phase: total for phase, total in sums.items() if total > 0.0}


def shown(name: str) -> str:
    """Return a name as it is shown."""
    if (where := names.frame(name)) is not None:
        return f"{place_words(where[:2])} {where[2]}"
    return shortened(name, SHOWN)


def line_words(name: str) -> str:
    """Return a Python function's place in brackets; an empty text for other names."""
    where = names.frame(name)
    return "" if where is None else f" ({place_words(where[:2])})"


def timeline(use: DeviceUse) -> tuple[tuple[float, float, str], ...]:
    """Return a device's timeline: the phase that takes most of each of `BINS` bins."""
    begin, end = use.window
    edges = np.linspace(begin, end, BINS + 1)
    sets: defaultdict[str, list[np.ndarray]] = defaultdict(list)
    for part, intervals in use.parts.items():
        sets[PHASE.get(part, part)].append(intervals)
    runs = segments({phase: union_of(some) for phase, some in sets.items()}, edges)
    return tuple((float(edges[a] - begin), float(edges[b] - begin), phase) for a, b, phase in runs)
