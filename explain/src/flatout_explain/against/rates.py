"""The speed of an observed run, by everything that was counted in it, and its course."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Annotated

from msgspec import Meta

from flatout_explain import cores
from flatout_explain.diagnosis import STEPS, UPDATES
from flatout_explain.documents import LARGEST
from flatout_explain.program.evidence import Evidence, Process, least_missing
from flatout_explain.program.facts import Facts
from flatout_explain.program.timeline import Timeline
from flatout_explain.program.tracks import APART
from flatout_explain.timespans import covered, interpolated, union

CALLS, WALL = "calls", "wall time"
UNITS = (CALLS, STEPS, UPDATES, WALL)
"""In the order in which a unit is chosen: the first that both programs have."""
EVALUATING = (CALLS, UPDATES, STEPS, WALL)
"""The order for programs that evaluate: environment steps for evaluation are no work."""

EVALUATES = 0.03  # share of the time from which on a program evaluates

SHORTEST_S = 1.0
"""A shorter steady state does not say how fast a program is; then all of its counts decide."""
BRIEFEST_S = 0.1

SHORT = 0.5
"""A turn in which less than this share was steady, because the rest was compiling, has no ratio."""


def units_in_order(*eval_shares: float) -> tuple[str, ...]:
    """Return the units, the best one first, for programs in which evaluation has these shares of
    the time."""
    return EVALUATING if max(eval_shares) >= EVALUATES else UNITS


def count_words(count: str) -> str:
    """Return the counted unit in words: ``calls of agent:learn``, ``rows of agent:learn``."""
    function, _, argument = count.removesuffix(")").partition("(")
    return f"{argument or 'calls'} of {function}"


def uncounted_words(evidence: Evidence) -> str:
    """Return why no calls of the function to count were counted; empty if some were, or if none
    was asked for."""
    if not evidence.count or any(CALLS in process.counts for process in evidence.processes):
        return ""
    function, _, argument = evidence.count.removesuffix(")").partition("(")
    missing = least_missing(process.missing for process in evidence.processes)
    if missing in (None, "function"):
        seen = "was not found" if missing else "may not have been found"
        return (
            f"{function} {seen} (in the program's own file a function is __main__:NAME, and a "
            "method is module:Class.method)"
        )
    if missing == "argument":
        return f"{function} has no argument {argument}"
    zero = f", or {argument} was 0 or no number" if argument else ""
    return f"{function} was found, but not called{zero}"


Amount = Annotated[float, Meta(ge=0, lt=LARGEST)]
Positive = Annotated[float, Meta(gt=0, lt=LARGEST)]
"""Limits of what is read from a file."""


@dataclass(frozen=True)
class Run:
    """The result of one run."""

    # by unit, how many of it per second; for `WALL`, 1 by the seconds from the start of the first
    # process to the end of the program, if it ended by itself
    rates: dict[str, Positive]
    phases: dict[str, Amount] = field(default_factory=dict)  # shares of the steady state
    seconds: Amount = 0.0  # how long the program was observed
    ended: bool = False  # whether it ended by itself
    part: str = ""  # why only a part of what the program does was seen, or empty
    counted: dict[str, Amount] = field(default_factory=dict)  # by unit, number behind its rate
    counted_s: Amount = 0.0  # the longest time in which a unit was counted
    contended: Amount = 0.0  # share of the time in which it waited for cores that others had
    torch_threads: int = 0  # the most of PyTorch's threads in one of its processes


def observed(facts: Facts) -> Run:
    """Return the result of a run in which work was counted."""
    evidence, line = facts.evidence, facts.line
    rates, numbers, longest = dict[str, float](), dict[str, float](), 0.0
    for unit, (number, seconds) in work(without_evaluation(evidence, line), line).items():
        rates[unit], numbers[unit] = number / seconds, number
        longest = max(longest, seconds)
    if evidence.finished and (wall := _wall(evidence)) > 0:
        rates[WALL] = 1 / wall
    contention = cores.contended(facts.blame.core_use)
    return Run(
        rates, dict(facts.blame.shares), evidence.ended - evidence.began, evidence.finished,
        line.part, numbers, longest, 0.0 if contention is None else contention.share,
        max((process.torch_threads or 0 for process in evidence.processes), default=0),
    )  # fmt: skip


@dataclass(frozen=True)
class Course:
    """The work of a program in the turns of its steady state."""

    first_edge: int  # number of the first edge of a turn in it
    # of the edges from this one on, in seconds, without imports and first compilations
    times: list[float]
    done: list[float]  # units of work counted until then
    cycle_s: float  # seconds of a whole cycle of collecting and learning, or of a unit of work


def course(evidence: Evidence, line: Timeline, edges: Sequence[float], unit: str) -> Course:
    """Return how much was counted by the end of each turn of the steady state.

    If less than two whole cycles were seen, the later half stands for it: a program that compiles
    all the time has no other.

    Args:
        line: the evidence's.
        edges: times at which turns began and ended.
    """
    processes = without_evaluation(evidence, line)
    begin = line.begin if not line.part else (line.begin + line.end) / 2
    within = [at for at, t in enumerate(edges) if begin <= t <= line.end]
    if not within:
        return Course(0, [], [], 0.0)
    if line.ends:  # whole cycles: each collects for a while, and then learns
        known, cycle_s = line.ends, (line.ends[-1] - line.ends[0]) / (len(line.ends) - 1)
    else:
        known, cycle_s = _changes(processes, unit), 0.0
    steady = [edges[at] for at in within]
    done = [_between(known, t, processes, unit) for t in steady]
    times = [t - _apart(line, t) for t in steady]
    if done[-1] > done[0]:
        cycle_s = max(cycle_s, (times[-1] - times[0]) / (done[-1] - done[0]))
    return Course(within[0], times, done, cycle_s)


def turn_ratios(first: Course, second: Course) -> list[float]:
    """Return ratios of the speeds of two programs in the same turns.

    As many turns are taken together as each program needs for a cycle, so that the ratios are
    independent of each other. Empty if there are less than two.
    """
    begin = max(first.first_edge, second.first_edge)
    end = min(one.first_edge + len(one.times) for one in (first, second))
    if end - begin < 2:
        return []
    spans, works = [], []
    for one in (first, second):
        part = slice(begin - one.first_edge, end - one.first_edge)
        spans.append(one.times[part])
        works.append(one.done[part])
    turn_s = min(max(b - a for a, b in pairwise(times)) for times in spans)
    if turn_s <= 0:
        return []
    each = max(1, math.ceil(max(first.cycle_s, second.cycle_s) / turn_s))
    ratios = []
    for at in range(0, end - begin - each, each):
        seconds = [times[at + each] - times[at] for times in spans]
        if min(seconds) < SHORT * each * turn_s:
            continue
        before, after = (
            (done[at + each] - done[at]) / s for done, s in zip(works, seconds, strict=True)
        )
        if min(before, after) <= 0:
            return []
        ratios.append(after / before)
    return ratios if len(ratios) > 1 else []


def work(processes: list[Process], line: Timeline) -> dict[str, tuple[float, float]]:
    """Return, by unit, how much of it was counted in the steady state, and in how many seconds."""
    found = {unit: _steadily(processes, unit, line) for unit in (CALLS, STEPS, UPDATES)}
    return {unit: (number, seconds) for unit, (number, seconds) in found.items() if number > 0}


def _steadily(processes: list[Process], unit: str, line: Timeline) -> tuple[float, float]:
    """Return how much of a unit was counted in the steady state, and the seconds of that state.

    Without such a state, or without counts in it, of all the time in which anything was counted.
    """
    seconds = line.end - line.begin - _apart(line, line.end)
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


def _apart(line: Timeline, t: float) -> float:
    """Return seconds of imports and first compilations in the steady state until a time."""
    return 0.0 if line.driver is None else line.driver.seconds(APART, line.begin, t)


def counted(processes: list[Process], unit: str, begin: float, end: float) -> float:
    """Return how much of a unit was counted between two times, in all processes.

    A vector environment whose environments step in worker processes counts each step, and so does
    each worker: a process and those that it started count for what is larger.
    """
    by_pid = {process.pid: process for process in processes}
    started: defaultdict[int | None, list[Process]] = defaultdict(list)
    for process in by_pid.values():
        parent = process.parent if process.parent in by_pid else None
        started[None if parent == process.pid else parent].append(process)

    def whole(process: Process) -> float:
        own = _until(process, unit, end) - _until(process, unit, begin)
        others = sum(map(whole, started[process.pid]))
        return max(own, others) if unit == STEPS else own + others

    return sum(map(whole, started[None]))


def without_evaluation(evidence: Evidence, line: Timeline) -> list[Process]:
    """Return the processes, without the environment steps that were counted during evaluation.

    A process evaluates, and so do those that it started, while its thread evaluates that learns or,
    without such a thread, its main thread.
    """
    spans: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for track in line.tracks:
        driver = line.driver if line.driver is not None else track
        if track is driver or (track.main and track.process != driver.process):
            pid = evidence.processes[track.process].pid
            spans[pid] += [(m.t - m.dt, m.t) for m in track.moments if m.mark.phase == "eval"]
    parents = {process.pid: process.parent for process in evidence.processes}
    found = []
    for process in evidence.processes:
        pid, seen, evaluation = process.pid, set[int](), list[tuple[float, float]]()
        while pid is not None and pid not in seen:
            seen.add(pid)
            evaluation += spans.get(pid, ())
            pid = parents.get(pid)
        series = process.counts.get(STEPS)
        if series and evaluation:
            counts = {**process.counts, STEPS: counted_outside(series, evaluation)}
            process = replace(process, counts=counts)
        found.append(process)
    return found


def counted_outside(
    series: Sequence[tuple[float, float]], spans: Iterable[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Return a count over time without the amounts that were counted in some spans of time."""
    times, totals = zip(*series, strict=True)
    excluded = union(spans)
    ends = {min(max(t, times[0]), times[-1]) for span in excluded for t in span}
    edges = sorted({*times, *ends})
    known = [interpolated(t, times, totals) for t in edges]
    steps = [
        # each piece is within a span, or in none
        0.0 if inside >= (b - a) / 2 else after - before
        for inside, (a, b), (before, after) in zip(
            covered(excluded, edges), pairwise(edges), pairwise(known), strict=True
        )
    ]
    found = accumulate(steps, initial=totals[0])
    return [(t, round(float(total), 6)) for t, total in zip(edges, found, strict=True)]


def _until(process: Process, unit: str, t: float) -> float:
    """Return a process's count at a time, which lies between the counts noted before and after
    it."""
    series = process.counts.get(unit)
    if not series or t < series[0][0]:
        return 0.0
    return float(interpolated(t, *zip(*series, strict=True)))


def _changes(processes: list[Process], unit: str) -> list[float]:
    """Return the times at which a count had grown, in order."""
    found = set[float]()
    for process in processes:
        rows = process.counts.get(unit, [])
        found.update(t for (_, n), (t, more) in pairwise(rows) if more > n)
    return sorted(found)


def _between(known: Sequence[float], t: float, processes: list[Process], unit: str) -> float:
    """Return a count at a time, interpolated between the nearest known times around it."""
    at = bisect_left(known, t)
    nearest = known[at - 1 : at + 1] if 0 < at < len(known) else [t]
    return interpolated(t, nearest, [counted(processes, unit, 0.0, each) for each in nearest])


def _wall(evidence: Evidence) -> float:
    """Return seconds from the first process's start to the last one's end."""
    if not evidence.processes:
        return 0.0
    ended = max((process.ended or 0.0) for process in evidence.processes)
    return (ended or evidence.ended) - evidence.processes[0].started
