"""Which part of the program holds the rest up: shares of the wall time by phase.

While the driver (the thread that learns) works, the time is its own phase's. While it waits, the
time belongs to whoever works then: with all workers busy to what they do; with most of them idle
to the waiting itself, a lockstep that its slowest part holds up; with nobody at work to the pipes
between them where the processors are busy all the same, else to waiting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from flatout.explain.program.evidence import Evidence
from flatout.explain.program.places import Mark, Site
from flatout.explain.program.timeline import Moment, Timeline, Track

ACTIVE, TRAINS = 0.02, 0.005
"""A thread that works for less than this share of the time serves nobody; one that does training's
own work, which helpers such as managers and loggers do not, for less than the second."""

WORK = ("env", "act", "replay", "input", "learn", "transfer", "communicate")
"""Phases of training."""

Where = tuple[int, Site | None, str]
"""(process, site, what is called there)."""


@dataclass
class Blame:
    """The explained time by what held the program up.

    Attributes:
        seconds: of the steady state.
        shares: by phase; sums to 1.
        where: by phase, seconds by place.
        workers: threads that work for the driver.
        balance: while some workers idled in a lockstep: mean share of them that worked.
        busy_cores: cores that the whole program used on average; None where unknown.
    """

    seconds: float
    shares: dict[str, float]
    where: dict[str, dict[Where, float]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )
    workers: int = 0
    balance: float = 1.0
    busy_cores: float | None = None


def blame(evidence: Evidence, line: Timeline) -> Blame:
    """Attribute the steady state's wall time."""
    driver = line.driver
    if driver is None:
        return Blame(0.0, {})
    moments = line.steady(driver)
    span = max(line.end - line.begin, 1e-9)
    workers = [
        track
        for track in line.tracks
        if track is not driver
        and (_worked(line, track) >= ACTIVE * span or _worked(line, track, WORK) >= TRAINS * span)
    ]
    found = Blame(sum(m.dt for m in moments), {}, workers=len(workers))
    found.busy_cores = busy_cores(evidence, line.begin, line.end)
    seconds: defaultdict[str, float] = defaultdict(float)
    silent = balance = lockstep = 0.0
    for moment in moments:
        mark = moment.mark
        if mark.phase == "input" or (not mark.waits and mark.phase != "wait"):
            seconds[mark.phase] += moment.dt
            found.where[mark.phase][driver.process, mark.site, mark.call] += moment.dt
            continue
        states = _states(workers, moment)
        busy = [(track, state) for track, state in states if _works(state)]
        there = len({track.process for track, _ in states})
        at_work = len({track.process for track, _ in busy})
        if not busy:
            silent += moment.dt
            found.where["wait"][driver.process, mark.site, mark.call] += moment.dt
        elif there > 1 and 2 * at_work <= there and all(state.phase != "ipc" for _, state in busy):
            seconds["wait"] += moment.dt
            lockstep += moment.dt
            balance += moment.dt * at_work / there
            for track, state in busy:
                found.where["wait"][track.process, state.site, state.call] += moment.dt
        else:
            for track, state in busy:
                part = moment.dt / len(busy)
                seconds[state.phase] += part
                found.where[state.phase][track.process, state.site, state.call] += part
    if lockstep:
        found.balance = balance / lockstep
    seconds[_silence(line, found, driver, silent)] += silent
    if not any(seconds[phase] for phase in WORK):  # no training that is known: plain computing
        seconds["learn"] += seconds.pop("other", 0.0)
        for where, part in found.where.pop("other", {}).items():
            found.where["learn"][where] += part
    total = sum(seconds.values()) or 1.0
    found.shares = {phase: part / total for phase, part in seconds.items() if part}
    return found


def _works(mark: Mark) -> bool:
    return not mark.waits and mark.phase not in ("wait", "import", "first compilation")


def _worked(line: Timeline, track: Track, phases: Collection[str] | None = None) -> float:
    """Seconds in which a thread worked, or worked at some phases."""
    return sum(
        m.dt
        for m in line.steady(track)
        if _works(m.mark) and (phases is None or m.mark.phase in phases)
    )


def _states(workers: list[Track], moment: Moment) -> list[tuple[Track, Mark]]:
    t = moment.t - min(moment.dt, 0.02) / 2
    states = [(track, track.at(t)) for track in workers]
    return [(track, state) for track, state in states if state is not None]


def _silence(line: Timeline, found: Blame, driver: Track, silent: float) -> str:
    """What nobody's work was: pipes where the processors are busy all the same, else waiting."""
    if not silent:
        return "wait"
    asleep = sum(
        m.dt for m in line.steady(driver) if m.mark.phase == "wait" and m.mark.call == "sleep"
    )
    if found.busy_cores is None or not found.workers or asleep > silent / 2:
        return "env" if found.where.get("env") and not found.workers else "wait"
    span = max(line.end - line.begin, 1e-9)
    working = sum(_worked(line, track) for track in line.tracks) / span
    return "ipc" if found.busy_cores - working > 0.35 * silent / found.seconds else "wait"


def busy_cores(evidence: Evidence, begin: float, end: float) -> float | None:
    """Cores that the program used on average between two times."""
    samples = [sample for sample in evidence.monitor if begin <= sample.t <= end + 1.0]
    samples = samples or evidence.monitor
    total = sum(sample.seconds for sample in samples)
    if not total:
        return None
    return sum(sample.cpu * sample.cores * sample.seconds for sample in samples) / total
