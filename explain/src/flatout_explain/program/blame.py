"""Shares of the wall time by the phase that is the bottleneck.

While the driver (the learning thread) works, the time counts for its phase. While it waits, the
time counts for the workers' phases; if most workers are idle, for waiting (a lockstep with the
slowest worker); if none works, for pipes if the processors are busy, else for waiting. While it
sleeps in the middle of its own work and another thread of its process works, it waits for the
interpreter's lock: that time counts for the other thread's phase.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from flatout_explain.hardware.core_use import CoreUse, core_use
from flatout_explain.phases import PHASES
from flatout_explain.program.evidence import Evidence
from flatout_explain.program.flow import Site
from flatout_explain.program.places import Mark
from flatout_explain.program.timeline import Timeline
from flatout_explain.program.tracks import LEARNING, Moment, Track

LOCKED = 0.2
"""Minimum share of a moment in which the driver sleeps in the middle of its work, without waiting
for anything that it asked for: then another thread holds the interpreter's lock."""

TURNS = 0.1
"""Minimum share of the time in which a thread works that takes turns with others."""

ACTIVE, TRAINS = 0.02, 0.005
"""Minimum shares of the time in which a worker thread works, and in which it does training's work
(which managers and loggers do not)."""

SERIALLY = 1.5
"""If the driver waits this many times longer for the work of other processes than the work takes,
one process would do it faster."""

WORK = ("env", "act", "replay", "input", "learn", "transfer", "communicate")  # phases of training


@dataclass(frozen=True)
class Where:
    """A place of a process."""

    process: int
    site: Site | None  # the innermost line of the program
    call: str
    own: Site | None  # the program's own line that leads there, if that is a library's


@dataclass
class Blame:
    """The explained time by bottleneck."""

    seconds: float  # of the steady state
    shares: dict[str, float]  # by phase; sums to 1
    where: dict[str, dict[Where, float]] = field(  # by phase, seconds by place
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )
    # seconds by phase in each of the timeline's blocks
    blocks: list[dict[str, float]] = field(default_factory=list)
    # of each phase, seconds in which a device computed
    device: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    # of each phase, and by who says so, seconds that marks decided
    marked: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    resets: float = 0.0  # seconds of ``env`` in which environments are reset
    workers: int = 0  # number of threads that work for the driver
    worker_seconds: float = 0.0  # of training's work in all workers of other processes
    # by phase, seconds in which the driver waited for that work
    served: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    locked: float = 0.0  # seconds in which the driver waited for the interpreter's lock
    # threads that take turns with the driver, so that their shares cannot be distinguished; or 0
    threads: int = 0
    core_use: CoreUse | None = None  # in the steady state

    @property
    def busy_cores(self) -> float | None:
        """Cores that the whole program used on average; None if unknown."""
        return None if self.core_use is None else self.core_use.used

    @property
    def trivial(self) -> dict[str, float]:
        """Shares of the time, by phase, that are spent on messages between processes whose work is
        not worth handing out: one process would do it `SERIALLY` times faster than the driver waits
        for it. They are that work, and all that the driver does at the lines that hand it out."""
        waited = sum(self.served.values()) + self.shares.get("ipc", 0.0) * self.seconds
        if not 0.0 < SERIALLY * self.worker_seconds < waited:
            return {}
        lines = {(where.process, where.site) for where in self.where.get("ipc", {})}
        found = dict(self.served)
        for phase in ("env", "wait"):
            for where, seconds in self.where.get(phase, {}).items():
                handed_out = (where.process, where.site) in lines
                found[phase] = found.get(phase, 0.0) + seconds * handed_out
        return {phase: seconds / self.seconds for phase, seconds in found.items()}


def blame(evidence: Evidence, line: Timeline) -> Blame:
    """Attribute the steady state's wall time."""
    driver = line.driver
    if driver is None:
        return Blame(0.0, {})
    moments = line.steady(driver)
    span = max(line.end - line.begin, 1e-9)
    others = [(track, _worked(line, track)) for track in line.tracks if track is not driver]
    workers = [
        track
        for track, worked in others
        if worked >= ACTIVE * span or _worked(line, track, WORK) >= TRAINS * span
    ]
    # Also those that run the same functions, and nearly always wait for the slowest of them.
    functions = set[tuple[str, str]]().union(*(_functions(evidence, line, one) for one in workers))
    peers = [
        track
        for track, worked in others
        if worked >= TRAINS * span and not functions.isdisjoint(_functions(evidence, line, track))
    ]
    result = Blame(sum(m.dt for m in moments), {}, workers=len(workers))
    ends = line.edges[1:]
    result.blocks = [defaultdict(float) for _ in ends]
    result.worker_seconds = sum(
        _worked(line, track, (*WORK, "other"))
        for track in workers
        if track.process != driver.process
    )
    locks = evidence.processes[driver.process].gil
    result.threads = _taking_turns(line, driver, workers, span) if locks else 0
    result.core_use = core_use(line.samples(evidence), int(evidence.machine["cores"]))
    silences: list[Moment] = []
    piped = 0.0

    def spend(phase: str, process: int, mark: Mark, seconds: float, moment: Moment) -> None:
        result.where[phase][Where(process, mark.site, mark.call, mark.user)] += seconds
        result.marked[phase, mark.marked if phase == mark.phase else ""] += seconds
        result.resets += seconds * (mark.resets and phase == mark.phase)
        if ends:
            block = min(bisect_left(ends, moment.t), len(ends) - 1)
            result.blocks[block][phase] += seconds

    for moment in moments:
        mark = moment.mark
        if moment.works or mark.phase == "input" or mark.marked:
            rest = moment.dt
            for state, held in _lock_holders(moment, workers, driver) if locks else ():
                spend(state.phase, driver.process, state, held, moment)
                result.locked += held
                rest -= held
            spend(mark.phase, driver.process, mark, rest, moment)
            result.device[mark.phase] += rest * moment.device
            continue
        t = moment.t - min(moment.dt, 0.02) / 2
        states = [(track, other) for track in workers if (other := track.at(t)) is not None]
        busy = [(track, other.mark) for track, other in states if other.works]
        if mark.call == "sleep":  # it polls, and does not wait for a message of the others
            busy = [(track, state) for track, state in busy if state.phase != "ipc"]
        alive = len({track.process for track in peers if track.at(t) is not None})
        at_work = len({track.process for track, _ in busy})
        if not busy:
            piped += moment.dt * mark.piped
            silences.append(moment)
            continue
        waits = alive > 1 and 2 * at_work <= alive and all(s.phase != "ipc" for _, s in busy)
        for track, state in busy:
            share = moment.dt / len(busy)
            phase = "wait" if waits else state.phase
            if track.process != driver.process and phase not in (*LEARNING, "ipc", "wait"):
                result.served[phase] += share
            if phase == "ipc":  # the driver's line says what is handed out
                spend(phase, driver.process, mark, share, moment)
            else:
                spend(phase, track.process, state, share, moment)
    silent = _silence(line, result, sum(moment.dt for moment in silences), piped)
    for moment in silences:
        spend(silent, driver.process, moment.mark, moment.dt, moment)
    seconds = {phase: sum(places.values()) for phase, places in result.where.items()}
    total = sum(seconds.values()) or 1.0
    result.shares = {phase: spent / total for phase, spent in seconds.items() if spent}
    return result


def _functions(evidence: Evidence, line: Timeline, track: Track) -> set[tuple[str, str]]:
    """Return the program's functions in which a thread was seen: file and name."""
    codes = evidence.processes[track.process].codes
    sites = {moment.mark.site for moment in line.steady(track)}
    return {(codes[site[0]].file, codes[site[0]].plain) for site in sites if site is not None}


def _taking_turns(line: Timeline, driver: Track, workers: Sequence[Track], span: float) -> int:
    """Return how many threads share the interpreter's lock with the driver, itself included; 0 if
    their shares can be distinguished.

    The main thread samples itself as it works. Other threads are caught where they release the
    lock, which says where one works only if it hardly ever waits for the others.
    """
    group = [driver, *(track for track in workers if track.process == driver.process)]
    if driver.main or len(group) < 2 or any(m.worked is None for m in driver.moments):
        return 0
    worked = [_worked(line, track) for track in group]
    ready = sum(
        m.dt for track in group for m in line.steady(track) if m.works and not m.mark.marked
    )
    busy = [seconds for seconds in worked if seconds >= TURNS * span]
    return len(busy) if len(busy) > 1 and ready > sum(worked) + TURNS * span else 0


def _lock_holders(
    moment: Moment, workers: Sequence[Track], driver: Track
) -> Iterator[tuple[Mark, float]]:
    """Yield the threads' marks that held the interpreter's lock while the driver slept, with
    seconds."""
    if moment.device or moment.worked is None or moment.mark.phase in ("io", "env", "compile"):
        return
    if moment.mark.marked:  # it may wait for anything
        return
    slept = moment.dt - moment.worked
    if slept < LOCKED * moment.dt:
        return
    others = [track for track in workers if track.process == driver.process]
    found = [other for track in others if (other := track.at(moment.t)) is not None]
    held = [min(other.worked or 0.0, other.dt) if other.works else 0.0 for other in found]
    total = sum(held)
    for other, seconds in zip(found, held, strict=True):
        if seconds > 0.0:
            yield other.mark, seconds / total * min(total, slept)


def _worked(line: Timeline, track: Track, phases: Collection[str] = PHASES) -> float:
    """Return the seconds for which a thread worked in phases, by its own clock if known."""
    return sum(
        m.dt if m.worked is None else min(m.dt, m.worked)
        for m in line.steady(track)
        if m.works and m.mark.phase in phases
    )


def _silence(line: Timeline, result: Blame, silent: float, piped: float) -> str:
    """Return the phase of time without work: ``ipc`` if the driver waits at a pipe while its
    workers are idle, or if the cores are busy; else ``wait`` (``env`` if it steps environments
    alone)."""
    if not silent:
        return "wait"
    if result.worker_seconds and piped > silent / 2:
        return "ipc"
    if result.busy_cores is None or not result.workers:
        return "env" if result.where.get("env") and not result.workers else "wait"
    span = max(line.end - line.begin, 1e-9)
    working = sum(_worked(line, track) for track in line.tracks) / span
    return "ipc" if result.busy_cores - working > 0.35 * silent / result.seconds else "wait"
