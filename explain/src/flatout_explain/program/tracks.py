"""A thread's samples over time, each with its phase."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from flatout_explain.program.places import Mark

LEARNING = ("learn", "transfer", "communicate")

LEARNS_S = 0.1  # seconds of learning from which on a thread is known to learn

APART = ("import", "first compilation")
"""Phases that the steady state does not contain."""


@dataclass(frozen=True)
class Moment:
    """A thread's sample: at `mark` from `t - dt` to `t`."""

    t: float
    dt: float
    mark: Mark
    stack: int
    worked: float | None = None  # seconds of `dt` in which the thread worked; None if unknown
    device: bool = False  # whether it waited for a device that computed

    @property
    def works(self) -> bool:
        """Whether the thread did the program's work: it waited for nothing, and neither imported
        nor compiled for the first time."""
        return not self.mark.waits and self.mark.phase not in ("wait", *APART)

    @property
    def shown(self) -> str:
        """The phase for a reader, of `flatout.spans.PHASES`."""
        phase = "wait" if self.mark.waits else self.mark.phase
        return {"import": "other", "first compilation": "compile"}.get(phase, phase)


def spent(moments: Iterable[Moment], phases: Collection[str]) -> float:
    """Return seconds in some phases."""
    return sum(m.dt for m in moments if m.mark.phase in phases)


@dataclass
class Track:
    """One thread over time."""

    process: int  # its process's position in the evidence
    name: str  # for display
    main: bool = True  # whether it is its process's main thread
    moments: list[Moment] = field(default_factory=list)  # in order

    def at(self, t: float) -> Moment | None:
        """Return the thread's moment at `t`; None if it had no sample then."""
        index = bisect.bisect_left(self.moments, t, key=lambda moment: moment.t)
        if index == len(self.moments):
            return None
        moment = self.moments[index]
        return moment if moment.t - moment.dt <= t + 0.02 else None

    def seconds(self, phases: Collection[str], begin: float = 0.0, end: float = 1e300) -> float:
        """Return the seconds in some phases between two times."""
        return spent((m for m in self.moments if begin < m.t <= end), phases)


def learner(tracks: Sequence[Track]) -> Track:
    """Return the thread that learns most; if none learns, the first main thread."""
    most = max(tracks, key=lambda track: track.seconds(LEARNING))
    if most.seconds(LEARNING) >= LEARNS_S:
        return most
    return next((track for track in tracks if track.main), tracks[0])
