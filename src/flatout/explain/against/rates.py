"""The speed of one observed run, by everything that was counted in it."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from flatout.documents import plain_number
from flatout.explain import cores
from flatout.explain.program.evidence import Evidence, Process
from flatout.explain.program.facts import facts_of
from flatout.explain.program.timeline import APART, Timeline

CALLS, STEPS, UPDATES, WALL = "calls", "environment steps", "optimiser steps", "wall time"
UNITS = (CALLS, STEPS, UPDATES, WALL)
"""In the order in which a unit is chosen: the first that both programs have."""

SHORTEST_S = 1.0
"""A shorter steady state does not say how fast a program is; then all of its counts decide."""
BRIEFEST_S = 0.1


@dataclass(frozen=True)
class Run:
    """The result of one run."""

    # by unit, how many of it per second; for `WALL`, 1 by the seconds from the start of the first
    # process to the end of the program, if it ended by itself
    rates: dict[str, float]
    phases: dict[str, float] = field(default_factory=dict)  # shares of the steady state
    seconds: float = 0.0  # how long the program was observed
    ended: bool = False  # whether it ended by itself
    part: str = ""  # why only a part of what the program does was seen, or empty
    counted: dict[str, float] = field(default_factory=dict)  # by unit, number behind its rate
    counted_s: float = 0.0  # the longest time in which a unit was counted
    contended: float = 0.0  # share of the time in which it waited for cores that others had

    @staticmethod
    def from_json(values: dict[str, Any]) -> Run:
        """A saved run; raises `TypeError` or `ValueError` if it is damaged."""
        run = Run(**values)
        numbers = [*run.rates.values(), *run.phases.values(), *run.counted.values()]
        numbers += [run.seconds, run.counted_s, run.contended]
        if not all(plain_number(number) >= 0 for number in numbers):
            raise ValueError("a rate below zero")
        if not set(run.rates) <= set(UNITS) or not all(run.rates.values()):
            raise ValueError(f"rates of {sorted(run.rates)}")
        return run


def run_of(evidence: Evidence) -> Run:
    """The speed of a program that was observed while its work was counted."""
    facts = facts_of(evidence)
    rates, numbers, longest = dict[str, float](), dict[str, float](), 0.0
    for unit in (CALLS, STEPS, UPDATES):
        number, seconds = _steadily(evidence.processes, unit, facts.line)
        if number > 0:
            rates[unit], numbers[unit] = number / seconds, number
            longest = max(longest, seconds)
    if evidence.finished and (wall := _wall(evidence)) > 0:
        rates[WALL] = 1 / wall
    contention = cores.contended(facts.blame.core_use)
    return Run(
        rates, dict(facts.blame.shares), evidence.ended - evidence.began, evidence.finished,
        facts.line.part, numbers, longest, 0.0 if contention is None else contention.share,
    )  # fmt: skip


def _steadily(processes: list[Process], unit: str, line: Timeline) -> tuple[float, float]:
    """How much of a unit was counted in the steady state, and its seconds.

    Without such a state, or without counts in it, of all the time in which anything was counted.
    """
    apart = 0.0 if line.driver is None else line.driver.seconds(APART, line.begin, line.end)
    seconds = line.end - line.begin - apart
    if line.driver is not None and seconds >= SHORTEST_S:
        number = counted(processes, unit, line.begin, line.end)
        if number > 0:
            return number, seconds
    every = [series for process in processes if (series := process.counts.get(unit))]
    begins = [max((t for t, n in each if not n), default=each[0][0]) for each in every]
    begin, end = min(begins, default=0.0), max((each[-1][0] for each in every), default=0.0)
    if end - begin < BRIEFEST_S:
        return 0.0, 0.0
    return counted(processes, unit, begin, end), end - begin


def counted(processes: list[Process], unit: str, begin: float, end: float) -> float:
    """How much of a unit was counted in some time, in all processes.

    A vector environment whose environments step in worker processes counts each step, and so does
    each worker: a process and those that it started count for what is larger.
    """
    by_pid = {process.pid: process for process in processes}
    started: defaultdict[int | None, list[Process]] = defaultdict(list)
    for process in by_pid.values():
        parent = process.parent if process.parent in by_pid else None
        started[None if parent == process.pid else parent].append(process)

    def whole(process: Process) -> float:
        series = process.counts.get(unit, ())
        own = _until(series, end) - _until(series, begin)
        others = sum(map(whole, started[process.pid]))
        return max(own, others) if unit == STEPS else own + others

    return sum(map(whole, started[None]))


def _until(series: Iterable[tuple[float, int]], t: float) -> float:
    """The count at a time, which lies between the counts noted before and after it."""
    known = list(series)
    at = bisect_right(known, t, key=lambda row: row[0])
    if at == 0:
        return 0.0
    if at == len(known):
        return float(known[-1][1])
    (t0, before), (t1, after) = known[at - 1], known[at]
    return before + (after - before) * (t - t0) / max(t1 - t0, 1e-9)


def _wall(evidence: Evidence) -> float:
    """Seconds from the first process's start to the last one's end."""
    if not evidence.processes:
        return 0.0
    ended = max((process.ended or 0.0) for process in evidence.processes)
    return (ended or evidence.ended) - evidence.processes[0].started
