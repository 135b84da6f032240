"""Ranks: processes of a distributed program, and for which of them the others wait.

All ranks exchange the same data, so that the time of a collective operation differs between them
by how long each waits for the last one to arrive. The rank that spends least time in collective
operations is therefore the slowest, whatever it works on or waits for meanwhile, and by how much
more the others spend is their wait for it. On GPUs it is in the kernels, which only traces show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flatout_explain.diagnosis import Finding, Rank
from flatout_explain.program.evidence import Evidence
from flatout_explain.program.timeline import Timeline
from flatout_explain.program.tracks import Track, learner
from flatout_explain.report import percent, waited

EXCHANGES = 0.01
"""Minimum share of its time that a process without a number spends in collective operations."""

HELD_UP = 0.05
"""Minimum share of the others' time that they wait for the slowest rank before it is named."""


def ranks(evidence: Evidence, line: Timeline) -> tuple[Rank, ...]:
    """Return the ranks in order; empty if the program is not distributed.

    A process is one if it is the first with its number, which the launcher or the library gives, or
    if it takes part in collective operations. Workers inherit the number of their rank.
    """
    found: list[tuple[tuple[int, int], Rank]] = []
    numbers = set[int]()
    for at, process in enumerate(evidence.processes):
        phases = _phases(line, [track for track in line.tracks if track.process == at])
        number = process.rank
        if not phases or number in numbers:
            continue
        exchanges = phases.get("communicate", 0.0)
        if number is None and exchanges < EXCHANGES:
            continue
        name = f"process {process.pid}" if number is None else f"rank {number}"
        order = (1, at) if number is None else (0, number)
        found.append((order, Rank(name, process.pid, 1.0 - exchanges, exchanges, 0.0, phases)))
        numbers |= {number} - {None}
    return compared([rank for _, rank in sorted(found, key=lambda each: each[0])])


def compared(every: Sequence[Rank]) -> tuple[Rank, ...]:
    """Return ranks with how long each waits for the slowest one; empty if they are fewer than two,
    or exchange nothing."""
    if len(every) < 2 or all(rank.exchanges < EXCHANGES for rank in every):
        return ()
    least = min(rank.exchanges for rank in every)
    return tuple(replace(rank, late=rank.exchanges - least) for rank in every)


def slowest(every: Sequence[Rank]) -> str:
    """Return the name of the rank for which the others wait; empty if there is none."""
    if not every:
        return ""
    last = min(every, key=lambda rank: rank.exchanges)
    return last.name if waited(every, last.name) >= HELD_UP else ""


def remedied(finding: Finding, every: Sequence[Rank]) -> Finding:
    """Return a finding, with another remedy if collective operations are mainly waits for the
    slowest rank: averaging less often would not help."""
    name = slowest(every)
    if finding.id != "communication-bound" or not name or waited(every, name) < finding.share / 2:
        return finding
    last = next(rank for rank in every if rank.name == name)
    own = {phase: share for phase, share in last.phases.items() if phase != "communicate"}
    most = max(own, key=lambda phase: own[phase], default="")
    part = f" (most of its time: {most}, {percent(own[most])})" if most else ""
    remedy = (
        f"Make {name} as fast as the other ranks{part}, or give it less work: the "
        "exchanges mostly consist of waiting for it."
    )
    return replace(finding, remedy=remedy, place=None)


def notes(every: Sequence[Rank], on_gpu: bool) -> Iterator[str]:
    """Yield what cannot be seen of the ranks."""
    if every and on_gpu:
        yield (
            "How long ranks wait for each other on GPUs is not seen here: record a trace of each "
            "rank (--record), and explain the traces."
        )


def _phases(line: Timeline, tracks: Sequence[Track]) -> dict[str, float]:
    """Return shares of a process's time in the steady state by phase: of the thread that learns
    most, or else of its main thread."""
    if not tracks:
        return {}
    spent: defaultdict[str, float] = defaultdict(float)
    for moment in line.steady(learner(tracks)):
        idle = moment.mark.waits and moment.mark.phase not in ("communicate", "input")
        spent["wait" if idle else moment.mark.phase] += moment.dt
    total = sum(spent.values())
    return {phase: seconds / total for phase, seconds in spent.items()} if total else {}
