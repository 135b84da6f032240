"""A diagnosis: findings, and what the reports draw next to them.

Plain values: the rules make them, the reports show them, nothing here measures or decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import msgspec

from flatout_explain.causes import HEALTHY, UNKNOWN
from flatout_explain.documents import LARGEST, convert
from flatout_explain.hardware.monitor import MonitorSample

SCHEMA = 1
"""Version of the JSON report. Keys may be added to a version; none is removed or changed."""

LEAST_LINE = 0.01  # lines with a smaller share of the time are not reported

STEPS, UPDATES = "environment steps", "optimiser steps"
"""Units of work."""

NEIGHBOURS_S = 0.02
"""Spans of one phase between which less than this passes are drawn as one."""


@dataclass(frozen=True)
class MeasuredGain:
    """A ratio of speeds of the whole program that was measured: 1.7 means 70 % more work per
    second."""

    gain: float
    low: float | None  # the interval of the measurements; None of a single one
    high: float | None
    how: str  # what was measured, in words


@dataclass(frozen=True)
class Trial:
    """A remedy that needs no change of the source, only another start of the program."""

    variables: tuple[str, ...] = ()  # of the environment, NAME=VALUE
    processes: int | None = None  # which load data; the program has a flag of its own for them


@dataclass(frozen=True)
class Finding:
    """One diagnosed cause."""

    id: str  # the cause (see `flatout_explain.causes`)
    share: float  # fraction of the explained wall time that it takes
    evidence: tuple[str, ...]  # sentences with numbers, most telling first
    remedy: str  # what to change, in one or two sentences
    place: tuple[str, int] | None = None  # file and line where it is to be changed, if known
    setting: tuple[str, ...] = ()  # flags of Flatout that apply the remedy, if there are any
    command: tuple[str, ...] = ()  # the words of a whole command with these flags, if it is known
    phases: tuple[str, ...] = ()  # whose time it is, as far as that is known
    gain: MeasuredGain | None = None  # of the remedy; None unless it was measured
    interval: tuple[float, float] | None = None  # holds the share with 95 %; None if unknown
    trial: Trial | None = None  # of the remedy; None if it needs a change of the source

    def as_json(self) -> dict[str, Any]:
        """Return JSON; ``interval``, ``setting``, ``command``, ``trial`` and the gain's keys only
        if known."""
        shown: dict[str, Any] = {
            "id": self.id, "share": self.share, "evidence": list(self.evidence),
            "remedy": self.remedy, "place": None if self.place is None else list(self.place),
        }  # fmt: skip
        if self.interval is not None:
            shown["interval"] = list(self.interval)
        if self.setting:
            shown["setting"] = list(self.setting)
        if self.command:
            shown["command"] = list(self.command)
        if self.trial is not None:
            shown["trial"] = {
                "variables": list(self.trial.variables), "processes": self.trial.processes,
            }  # fmt: skip
        return shown if self.gain is None else shown | asdict(self.gain)


def verdict(findings: Sequence[Finding]) -> str:
    """Return the first cause; ``healthy`` if that is computing, ``unknown`` without findings."""
    first = findings[0].id if findings else UNKNOWN
    return HEALTHY if first == "compute-bound" else first


@dataclass(frozen=True)
class Lane:
    """The phases of one thread or device over time."""

    name: str  # for a reader ("main 4711", "worker 2", "gpu:0")
    # (start, end, phase): seconds from the beginning, phases of `PHASES`
    spans: tuple[tuple[float, float, str], ...]


def lanes(
    spans: Iterable[tuple[str, Iterable[tuple[float, float, str]]]],
) -> tuple[Lane, ...]:
    """Return the timeline from each lane's name and spans, which follow each other.

    Neighbouring spans of one phase become one. Lanes that only wait are left out, except for the
    first one.
    """
    drawn: list[Lane] = []
    for number, (name, inside) in enumerate(spans):
        merged: list[tuple[float, float, str]] = []
        for begin, end, phase in inside:
            if merged and merged[-1][2] == phase and begin - merged[-1][1] < NEIGHBOURS_S:
                merged[-1] = (merged[-1][0], end, phase)
            else:
                merged.append((max(begin, 0.0), end, phase))
        if number == 0 or any(phase != "wait" for _, _, phase in merged):
            drawn.append(Lane(name, tuple(merged)))
    return tuple(drawn)


@dataclass(frozen=True)
class LineShare:
    """A line's share of the explained time in one phase."""

    phase: str
    place: str  # file and line for a reader ("train.py:40"); empty if unknown
    text: str  # its source, or the name of its call
    share: float


@dataclass(frozen=True)
class WorkRate:
    """How much work of a kind the program did per second of the explained time."""

    per_s: float
    interval: tuple[float, float] | None = None  # holds the rate with 95 %; None if unknown


@dataclass(frozen=True)
class Rank:
    """One of several processes that exchange data by collective operations (DDP, MPI)."""

    name: str  # "rank 1", or "process 4711" where its number is unknown
    pid: int  # 0 in traces
    own: float  # share of its time outside of collective operations
    exchanges: float  # share in them
    late: float  # by how much that is more than the slowest rank's: it waits for that rank
    phases: dict[str, float]  # shares of its time


@dataclass(frozen=True)
class MachineTime:
    """A machine of a cluster whose workers collect for a run, with shares of the explained time."""

    name: str
    workers: int
    work: float  # in which at least one of its workers collected
    way: float  # in which requests to it and its answers were on their way
    held: float  # for which the run waited for it alone
    clock_s: float  # seconds by which its clock, aligned by round trips, may be wrong


@dataclass(frozen=True)
class Diagnosis:
    """The whole answer."""

    subject: str  # what was explained: a command line or a run folder
    verdict: str  # a cause's id, ``healthy``, or ``unknown`` where too little was seen
    headline: str  # the verdict's sentence
    findings: tuple[Finding, ...]  # best first
    seconds: float  # explained (steady) wall time
    # (what, seconds) that were left out of the shares: imports, warm-up, compilation
    apart: tuple[tuple[str, float], ...] = ()
    phases: dict[str, float] = field(default_factory=dict)  # share of that time; sums to 1
    lanes: tuple[Lane, ...] = ()  # the timeline
    usage: tuple[MonitorSample, ...] = ()  # of the hardware; their times, from the beginning
    cores: int = 1  # logical cores that the program may use
    machine: str = ""  # one line about the machine
    notes: tuple[str, ...] = ()  # what could not be seen, one sentence each
    # why only a part of what the program does was seen: then nothing is proposed. Empty where the
    # shares are of the whole.
    part: str = ""
    lines: dict[str, str] = field(default_factory=dict)  # each phase's heaviest line, in words
    # share of that time, by phase, that marks of the program or --phase decided
    marked: dict[str, float] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)  # share of that time, by recorded device
    recorded: tuple[str, ...] = ()  # what the program's own profiler recorded, one sentence each
    tie: tuple[str, ...] = ()  # ids of the first two causes if either may be larger
    ended: str = ""  # how the program ended, if it failed or ended at once
    kind: str = "program"  # what was explained: a ``program``, a ``run`` of Flatout or a ``trace``
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)  # of phases' shares
    heaviest: tuple[LineShare, ...] = ()  # lines that take most time
    work: dict[str, WorkRate] = field(default_factory=dict)  # by unit, if work was counted
    ranks: tuple[Rank, ...] = ()  # in order of their numbers
    slowest: str = ""  # name of the rank for which the others wait; empty if there is none
    # share of the explained time in which environments are reset, a part of ``env``
    resets: float = 0.0
    # when the explained time began and ended, in seconds from the beginning; None: all of it
    explained: tuple[float, float] | None = None
    machines: tuple[MachineTime, ...] = ()  # of a cluster, on which a run's workers collect

    def check(self) -> None:
        """Refuse values of wrong types and impossible numbers, as damaged files have them.

        Raises:
            ValueError: with the first one.
        """
        values = msgspec.to_builtins(self)
        convert(values, Diagnosis)
        _refuse_impossible(values)
        for phase, share in self.phases.items():
            if not -0.01 <= share <= 1.01:
                raise ValueError(f"{100 * share:.0f} % of the time is {phase}")

    def as_json(self) -> dict[str, Any]:
        """Return the diagnosis as ``--json`` writes it: everything but the timeline. The types are
        those of `flatout_explain.document`."""
        shown = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("lanes", "usage", "tie", "machines", "explained"):
            del shown[name]
        shown |= {
            "findings": [finding.as_json() for finding in self.findings],
            "heaviest": list(map(asdict, self.heaviest)),
            "work": {unit: asdict(rate) for unit, rate in self.work.items()},
            "ranks": list(map(asdict, self.ranks)),
        }
        if self.tie:
            shown["tie"] = list(self.tie)
        if self.machines:
            shown["machines"] = list(map(asdict, self.machines))
        return {"schema": SCHEMA} | shown


def _refuse_impossible(value: Any) -> None:
    """Refuse numbers that are not finite, or too large for a recording."""
    if isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            _refuse_impossible(inner)
    elif isinstance(value, int | float) and not abs(value) < LARGEST:
        raise ValueError(f"it has {value:.3g} for a number")
