"""Causes that Python and the kernel count: garbage collections, page faults, full memory, quotas.

Their shares of the time are no samples. The same time is also in the phases that it lengthens.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from flatout_explain import cores
from flatout_explain.diagnosis import Finding, Trial
from flatout_explain.hardware.core_use import quota_share
from flatout_explain.hardware.monitor import MonitorSample
from flatout_explain.program.evidence import KILLED, Evidence, Process
from flatout_explain.program.facts import Facts
from flatout_explain.program.garbage import between, collecting
from flatout_explain.program.remedies import with_threads
from flatout_explain.ranking import LEAST_SHARE, interval
from flatout_explain.report import duration, percent, place_words
from flatout_explain.timespans import weighted_mean

CALLED = 0.5  # part of the collections' time from which on the program's calls of them are named
UNSEEN = 0.1  # how much larger a share must be without the observation to be taken in its place
MOSTLY = 0.35  # part of the kernel's time from which on page faults are taken for all of it
READ_S = 1e-4  # seconds for reading a page, where the kernel does not count the waiting
PAGES_PER_MB, PAGES_PER_HUGE = 256, 512  # of 4 KiB

SOON_S = 4 * 3600.0  # memory that is full later than this is not reported
SHORTEST_S, FEWEST = 8.0, 8  # seconds and samples in which memory's growth can be seen
PARTS = 4  # of these, in each of which memory must have grown
EVEN = 0.4  # minimum growth in each part, of the mean growth

KEEPING = (
    "MALLOC_TRIM_THRESHOLD_=4294967296", "MALLOC_TOP_PAD_=67108864",
    "MALLOC_MMAP_THRESHOLD_=33554432",
)  # fmt: skip
"""Variables with which glibc does not give memory back to the system."""

LESS = (
    "Use less memory: smaller buffers or types (observations as uint8), fewer processes; or give "
    "the program more."
)


def findings(facts: Facts) -> list[Finding | None]:
    """Return the findings with shares of the time, in any order."""
    return [garbage(facts), allocating(facts), swapping(facts), throttled(facts)]


def _found(cause: str, facts: Facts, share: float, parts: Iterable[tuple[float, float]],
           evidence: Sequence[str], remedy: str, place: tuple[str, int] | None = None,
           trial: Trial | None = None) -> Finding | None:  # fmt: skip
    """Return a finding, unless its share is small: of the time, or of a working GPU's waits."""
    share *= 1.0 - (facts.gpu or 0.0)
    if share < LEAST_SHARE:
        return None
    sure = interval(share, parts)
    return Finding(cause, share, tuple(evidence), remedy, place, interval=sure, trial=trial)


# --- Garbage ----------------------------------------------------------------------------------


def garbage(facts: Facts) -> Finding | None:
    """Judge Python's garbage collector: in the driver's process, whose threads all wait for it, and
    in other processes as far as the driver waits for them."""
    driver = facts.line.driver
    if driver is None or not facts.evidence.processes[driver.process].garbage:
        return None
    process = facts.evidence.processes[driver.process]
    begin, end = facts.line.begin, facts.line.end
    own = collecting(process.garbage, begin, end)
    others = [
        collecting(other.garbage, begin, end)
        for other in facts.evidence.processes
        if other is not process and other.garbage
    ]
    served = sum(facts.blame.served.values()) / (facts.blame.seconds or 1.0)
    share = own + served * (statistics.fmean(others) if others else 0.0)
    edges = facts.line.edges
    parts = [(collecting(process.garbage, a, b) * (b - a), b - a) for a, b in pairwise(edges)]
    steady = between(process.garbage, begin, end)
    of_generations = zip(steady.times, steady.seconds, strict=True)
    counts = " and ".join(
        f"{times:,} of generation {generation} ({duration(seconds)})"
        for generation, (times, seconds) in enumerate(of_generations)
        if seconds >= 0.1 * sum(steady.seconds)
    )
    evidence = [f"garbage collections take {percent(own)} of the time: {counts or 'short ones'}"]
    place = _place(process, steady.places)
    if place is not None:
        evidence.append(f"most of this time is in collections that begin at {place_words(place)}")
    if steady.asked > CALLED * sum(steady.seconds):
        remedy = "Call gc.collect() less often, or not at all: Python collects by itself."
    else:
        remedy = (
            "Call gc.freeze() once everything is set up, so that long-lived objects are not looked "
            "at again, and collect less often: gc.set_threshold(100_000, 50, 50). Fewer objects "
            "help, too: arrays in place of lists of small objects, no cycles of references."
        )
    return _found("garbage-bound", facts, share, parts, evidence, remedy, place)


def _place(process: Process, places: dict[tuple[int, int], float]) -> tuple[str, int] | None:
    """Return the file and line at which half of the collecting begins, or more; None without."""
    if not places:
        return None
    code, line = max(places, key=lambda place: places[place])
    known = 2 * places[code, line] >= sum(places.values()) and code < len(process.codes)
    return (process.codes[code].file, line) if known else None


# --- Memory -----------------------------------------------------------------------------------


def allocating(facts: Facts) -> Finding | None:
    """Judge minor page faults: memory that was given back, and is fetched again by pages. Growth of
    the memory, and pages that processes share after a fork, are none of that."""
    costs, pid = facts.evidence.machine.get("fault_s"), _pid(facts)
    if not costs or pid is None or facts.restarts:
        return None

    def spent(sample: MonitorSample) -> float:
        return _fetching(facts, sample, pid, costs)

    samples = facts.line.samples(facts.evidence)
    faults = [sample.faults[pid] for sample in samples if spent(sample) > 0.0]
    share, last, evidence = _mean(samples, spent), facts.evidence.unobserved, list[str]()
    if last is not None and spent(last) > share + UNSEEN:
        evidence = [
            f"page faults took {percent(share)} of the time while the program was observed, which "
            f"keeps memory from being given back, and {percent(spent(last))} right after that"
        ]
        share, faults = spent(last), [last.faults[pid]]
    if not faults:
        return None
    minor, system = (statistics.fmean(of) for of in ([f.minor for f in faults],
                                                     [f.system for f in faults]))  # fmt: skip
    grown = max(_slope(samples), 0.0) * PAGES_PER_MB
    huge = min(_mean(samples, lambda sample: sample.huge or 0.0), minor)
    share *= max(1.0 - grown / (minor + (PAGES_PER_HUGE - 1) * huge), 0.0)
    evidence.insert(0, (
        f"{minor:,.0f} times per second a page of memory is fetched again (minor page faults), "
        f"which takes {percent(share)} of the time; the kernel uses {percent(system)} of a core"
    ))  # fmt: skip
    remedy = (
        f"Let glibc keep memory: start the program with {' '.join(KEEPING)}. Make arrays of more "
        "than 32 MiB once, and write into them (out=)."
    )
    parts, trial = _parts(facts, spent), Trial(KEEPING)
    return _found("allocation-bound", facts, share, parts, evidence, remedy, trial=trial)


def _fetching(facts: Facts, sample: MonitorSample, pid: int, costs: Sequence[float]) -> float:
    """Return the share of a sample's time of fetching pages: in the main thread if that is
    the driver, or of the cores that it used, whichever is more."""
    faults = sample.faults.get(pid)
    if faults is None or not faults.minor:
        return 0.0
    huge = min(sample.huge or 0.0, faults.minor)
    used = (faults.minor - huge) * costs[0] + huge * costs[1]
    # Measured pages are in the processor's caches, so that others take longer.
    used = faults.system if used >= MOSTLY * faults.system else used
    driver = facts.line.driver
    main = used * faults.main / faults.minor if driver is not None and driver.main else 0.0
    return min(max(main, used / max(sample.processes.get(pid, 1.0), 1.0)), 1.0)


def swapping(facts: Facts) -> Finding | None:
    """Judge major page faults: memory that was swapped out, and is read back."""

    def faults(sample: MonitorSample) -> float:
        return sum(faults.major for faults in sample.faults.values())

    def spent(sample: MonitorSample) -> float:
        if sample.stalled is None:
            return min(READ_S * faults(sample), 1.0)
        return min(sample.stalled, 1.0) if faults(sample) else 0.0

    samples = facts.line.samples(facts.evidence)
    share, major = _mean(samples, spent), _mean(samples, faults)
    known = [sample.swapped for sample in samples if sample.swapped is not None]
    evidence = [
        f"the program waits {percent(share)} of the time for memory; {major:,.0f} times per second "
        "a page is read back (major page faults)"
    ]
    if known and statistics.fmean(known) >= 1.0:
        evidence.append(f"the machine swaps {statistics.fmean(known):,.0f} pages per second")
    return _found("swapping", facts, share, _parts(facts, spent), evidence, LESS)


def growth(facts: Facts) -> Finding | None:
    """Judge memory that grows steadily, and will soon be full."""
    machine = facts.evidence.machine
    samples = [s for s in facts.line.samples(facts.evidence) if s.rss_mb is not None]
    slope = _slope(samples)
    if slope <= 0.0 or "free_mb" not in machine or len(samples) < FEWEST:
        return None
    edges = [samples[at * (len(samples) - 1) // PARTS].rss_mb or 0.0 for at in range(PARTS + 1)]
    steps = [late - early for early, late in pairwise(edges)]
    left_s = (machine["free_mb"] - edges[-1]) / slope
    steady = min(steps) >= EVEN * statistics.fmean(steps)
    if not steady or left_s > SOON_S or samples[-1].t - samples[0].t < SHORTEST_S:
        return None
    when = f"the {machine['memory_mb'] / 1024:.0f} GiB are full in {duration(max(left_s, 0.0))}"
    evidence = (
        f"memory grows by {60 * slope:,.0f} MiB per minute, from {edges[0]:,.0f} to "
        f"{edges[-1]:,.0f} MiB; at this rate {when}"
    )
    remedy = (
        "Find what grows: a list or buffer without a limit, losses that keep their graph (append "
        "loss.item()), or a cache; tracemalloc compares two moments."
    )
    return Finding("memory-full", 0.0, (evidence,), remedy)


def killed(evidence: Evidence) -> Finding | None:
    """Return the finding where the kernel ended a process because memory was full, or None."""
    if not evidence.oom:
        return None
    whom = "the program" if evidence.code == KILLED else "a process of the program"
    most = max((sample.rss_mb or 0.0 for sample in evidence.monitor), default=0.0)
    words = f"the kernel's OOM killer ended {whom}, because {evidence.oom} was full"
    seen = [f"the program was seen to hold up to {most:,.0f} MiB"] if most else []
    return Finding("memory-full", 0.0, (words, *seen), LESS)


def _slope(samples: Sequence[MonitorSample]) -> float:
    """Return the growth of resident memory in MiB per second, by least squares; 0 if unknown."""
    known = [(sample.t, sample.rss_mb) for sample in samples if sample.rss_mb is not None]
    if len({t for t, _ in known}) < 2:
        return 0.0
    return statistics.linear_regression(*zip(*known, strict=True)).slope


# --- Quotas -----------------------------------------------------------------------------------


def throttled(facts: Facts) -> Finding | None:
    """Judge a CPU quota that stops the program once it is used up."""
    found = cores.throttled(facts.blame.core_use)
    if found is None:
        return None

    def stopped(sample: MonitorSample) -> float:
        return quota_share(sample.throttled or 0.0, sample.cpu * sample.cores)

    parts = _parts(facts, stopped)
    trial = with_threads(facts, facts.cores)
    return _found("throttled", facts, found.share, parts, found.evidence, found.remedy, trial=trial)


# --- Samples of the monitor -------------------------------------------------------------------


def _pid(facts: Facts) -> int | None:
    driver = facts.line.driver
    return None if driver is None else facts.evidence.processes[driver.process].pid


def _mean(samples: Sequence[MonitorSample], of: Callable[[MonitorSample], float]) -> float:
    """Return the mean over time."""
    return weighted_mean((of(sample), sample.seconds) for sample in samples) or 0.0


def _parts(facts: Facts, of: Callable[[MonitorSample], float]) -> list[tuple[float, float]]:
    """Return for each block of the steady state the amount of a share, and its length."""
    blocks = [(samples, sum(s.seconds for s in samples)) for samples in facts.samples]
    return [(_mean(samples, of) * seconds, seconds) for samples, seconds in blocks if seconds]
