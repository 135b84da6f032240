"""Span records: lines of spans.jsonl, read, joined and summed up; docs/metrics.md describes them.

A line says what one process or thread of a run (its ``lane``) did for about a second.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout.errors import CheckpointError
from flatout.spans import NO_RESETS, ResetTimes
from flatout_explain.documents import (
    LONGEST_LINE,
    Number,
    WholeNumber,
    bounded_lines,
    convert,
    parse_line,
)
from flatout_explain.files import nofollow
from flatout_explain.hardware.monitor import MonitorSample

SPANS, DEVICES = "spans.jsonl", "devices.jsonl"
MAIN, LEARNER, WORKER, MACHINE = "main", "learner", "worker ", "machine "
"""Values of ``lane``: the main process, the learner's thread, actor processes by number, machines
of a cluster by name."""

MOST_BYTES, MOST_LINES = 64 << 20, 1_000_000
"""Maximum size of a file of JSON lines that is read whole; a month of training writes a third."""

PLAN = "plan"
"""The main process's span in which another process measures placements."""

MEASURING = "measuring placements"
"""The name of that time among what is not a part of the steady state."""

WAIT_LEARNER = "wait_learner"
"""The main process's waiting for the learner's thread."""


@dataclass(frozen=True)
class Begin:
    """A process's description of itself when its training began."""

    t: Number  # seconds since the run's start
    startup_s: Number = 0.0  # before that, with `compile_s`
    compile_s: Number = 0.0
    plan_s: Number = 0.0  # within `startup_s`: measuring placements
    cores: WholeNumber = 1  # that it may use
    envs: WholeNumber = 1  # stepped together
    placement: str = "cpu"  # with its workers
    machine: str = ""  # in one line
    gpus: tuple[str, ...] = ()  # names of those that JAX can use here
    images: bool = False  # whether observations are images
    could_have_spares: bool = True  # whether its environments have none, but could


@dataclass(frozen=True)
class SpanRecord:
    """The work of one process or thread during a period."""

    t: Number  # its begin, in seconds since the run's start
    d: Number  # its duration
    lane: str = MAIN  # the process or thread
    # Seconds; the rest is other, or idle.
    spans: dict[str, Number] = field(default_factory=dict[str, float])
    steps: WholeNumber = 0  # made in it (the main process's), as the next two
    updates: WholeNumber = 0
    iterations: WholeNumber = 0
    turns: WholeNumber = 0  # requests that an actor process answered
    square: Number = 0.0  # sum of the squares of their durations, in s²
    resets: WholeNumber = 0  # at which its environments began their next episodes
    reset_s: Number = 0.0  # that these took
    reset_square: Number = 0.0  # sum of the squares of what each took, in s²
    reset_wait_s: Number = 0.0  # that steps waited for them, a part of the seconds of stepping
    clock_s: Number = 0.0  # by how much a machine's clock may differ from what is known of it
    first: bool = False  # the first iteration of a process: not yet steady
    closing: bool = False  # after the last iteration

    @property
    def end(self) -> float:
        return self.t + self.d


def as_line(record: SpanRecord) -> dict[str, Any]:
    """A record as a short JSON object."""
    line: dict[str, Any] = {"t": round(record.t, 3), "d": round(record.d, 4), "lane": record.lane}
    for name in ("steps", "updates", "iterations", "turns", "resets", "first", "closing"):
        if value := getattr(record, name):
            line[name] = value
    for name in ("square", "reset_s", "reset_square", "reset_wait_s", "clock_s"):
        if value := getattr(record, name):
            line[name] = float(f"{value:.4g}")
    line["spans"] = {n: round(s, 5) for n, s in record.spans.items() if s >= 5e-6}
    return line


def read_lines(lines: Iterable[dict[str, Any]]) -> tuple[list[Begin], list[SpanRecord]]:
    """Each process's `Begin`, and the span records; damaged lines are skipped."""
    begins, records = list[Begin](), list[SpanRecord]()
    for line in lines:
        with suppress(ValueError):
            if "begin" in line:
                begins.append(convert(line["begin"], Begin))
            else:
                records.append(convert(line, SpanRecord))
    return begins, records


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; damaged lines and a missing file are skipped.

    Raises:
        CheckpointError: it is larger than `MOST_BYTES` or has more than `MOST_LINES`.
    """
    with suppress(OSError), nofollow.open_stream(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise CheckpointError(
                f"{path} has {size:,} bytes, and at most {MOST_BYTES:,} are read."
            )
        return json_objects(_counted(bounded_lines(file), path))
    return []


def _counted(lines: Iterable[bytes], path: Path) -> Iterator[bytes]:
    """These lines; `CheckpointError` if there are more than `MOST_LINES`."""
    for number, line in enumerate(lines):
        if number >= MOST_LINES:
            raise CheckpointError(
                f"{path} has more than {MOST_LINES:,} lines, which is too many to be read."
            )
        yield line


def json_objects(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """The objects of JSON lines; damaged lines are skipped."""
    objects: list[dict[str, Any]] = []
    for line in lines:
        with suppress(ValueError):
            value = parse_line(line)
            if isinstance(value, dict):
                objects.append(value)
    return objects


def read_samples(path: Path) -> list[MonitorSample]:
    """The samples of a recording; damaged lines and a missing file are skipped."""
    samples: list[MonitorSample] = []
    for values in json_lines(path):
        with suppress(ValueError):
            samples.append(convert(values, MonitorSample))
    return samples


def cut_after(path: Path, t: float) -> None:
    """Truncate the file before the first line that ends after `t` or is incomplete."""
    if not path.exists():
        return
    kept = 0
    with nofollow.open_stream(path, nofollow.CHANGE) as file:
        while line := file.readline(LONGEST_LINE + 1):
            try:
                value = parse_line(line)
                record = value.get("begin", value)
                # Times are rounded to a millisecond.
                whole = line.endswith(b"\n") and record["t"] + record.get("d", 0.0) <= t + 1e-3
            except (ValueError, KeyError, TypeError, AttributeError):
                whole = False
            if not whole:
                break
            kept += len(line)
        file.truncate(kept)


@dataclass(frozen=True)
class Worker:
    """An actor process in the explained time: seconds, turns, and the sum of their squares."""

    env_s: float = 0.0
    act_s: float = 0.0
    turns: int = 0
    square: float = 0.0
    resets: ResetTimes = NO_RESETS

    @property
    def busy_s(self) -> float:
        return self.env_s + self.act_s


@dataclass(frozen=True)
class MachineTotals:
    """A machine of a cluster in the explained time."""

    name: str
    work_s: float = 0.0  # in which at least one of its workers collected
    way_s: float = 0.0  # in which requests to it and its answers were on their way
    held_s: float = 0.0  # for which the run waited for it alone
    trajectories: int = 0  # of its workers
    clock_s: float = 0.0  # by how much its clock may differ from what is known of it


@dataclass(frozen=True)
class Totals:
    """Sums over the explained period of a run."""

    seconds: float  # its length
    steps: int  # made in it, as the next two
    updates: int
    iterations: int
    main: dict[str, float]  # seconds of the main process by span, with ``other``
    learner: dict[str, float] | None = None  # of the learner's thread (``other`` is idle), if any
    workers: tuple[Worker, ...] = ()  # the actor processes
    notes: tuple[str, ...] = ()  # remarks on the choice of the period
    begin: float = 0.0  # of the period
    resets: ResetTimes = NO_RESETS  # of the environments that the main process steps
    machines: tuple[MachineTotals, ...] = ()  # of a cluster


def steady(records: Sequence[SpanRecord]) -> tuple[Totals | None, list[tuple[str, float]]]:
    """Sum up the steady state.

    Left out are each process's first iteration, the time after its last one, the time before the
    first update, if there are updates, and the time in which placements were measured.

    Returns:
        The sums, or None without an iteration; and (what, seconds) left out.
    """
    excluded: dict[str, float] = {}
    mains = [record for record in records if record.lane == MAIN]
    notes: tuple[str, ...] = ()
    useful = [r for r in mains if not r.first and not r.closing and r.iterations]
    learning = [index for index, record in enumerate(useful) if record.updates]
    if learning and learning[0]:  # learning starts within that record: leave it out, too
        before = useful[: learning[0]] + ([useful[learning[0]]] if learning[1:] else [])
        useful = useful[len(before) :]
        excluded["before the first update"] = sum(map(_training_s, before))
    if useful:
        excluded["first iteration"] = sum(_training_s(record) for record in mains if record.first)
    else:
        useful = [record for record in mains if record.iterations]
        notes = ("The run was too short for a steady state: its first iteration is explained.",)
    excluded[MEASURING] = sum(record.spans.get(PLAN, 0.0) for record in mains)
    excluded["end of the run"] = sum(_training_s(record) for record in mains if record.closing)
    left_out = [(what, seconds) for what, seconds in excluded.items() if seconds]
    if not useful:
        return None, left_out
    times = {(record.t, record.end) for record in useful}
    concurrent = [r for r in records if r.lane != MAIN and (r.t, r.end) in times]
    learners = [record for record in concurrent if record.lane == LEARNER]
    main, learner = _summed(useful), _summed(learners) if learners else None
    measured = main.pop(PLAN, 0.0)
    if learner is not None:  # it waited meanwhile
        learner["other"] = max(learner["other"] - measured, 0.0)
    by_worker: dict[str, list[SpanRecord]] = {}
    by_machine: dict[str, list[SpanRecord]] = {}
    for record in concurrent:
        if record.lane.startswith(WORKER):
            by_worker.setdefault(record.lane, []).append(record)
        if record.lane.startswith(MACHINE):
            by_machine.setdefault(record.lane, []).append(record)
    by_number = sorted(by_worker, key=lambda name: (len(name), name))
    totals = Totals(
        seconds=sum(record.d for record in useful) - measured,
        steps=sum(record.steps for record in useful),
        updates=sum(record.updates for record in useful),
        iterations=sum(record.iterations for record in useful),
        main=main,
        learner=learner,
        workers=tuple(_worker(by_worker[name]) for name in by_number),
        notes=notes,
        begin=useful[0].t,
        resets=_resets(useful),
        machines=tuple(_machine(lane, by_machine[lane]) for lane in sorted(by_machine)),
    )
    return totals, left_out


def _training_s(record: SpanRecord) -> float:
    """Return the seconds of a record without those in which placements were measured."""
    return record.d - record.spans.get(PLAN, 0.0)


def _summed(records: Sequence[SpanRecord]) -> dict[str, float]:
    """Seconds by span, and the rest as ``other``."""
    sums: dict[str, float] = {}
    for record in records:
        for name, seconds in record.spans.items():
            sums[name] = sums.get(name, 0.0) + seconds
    rest = sum(record.d for record in records) - sum(sums.values())
    return sums | {"other": max(rest, 0.0)}


def _worker(records: Sequence[SpanRecord]) -> Worker:
    sums, turns = _summed(records), sum(record.turns for record in records)
    square = sum(record.square for record in records)
    resets = _resets(records)
    return Worker(sums.get("env", 0.0), sums.get("act", 0.0), turns, square, resets)


def _machine(lane: str, records: Sequence[SpanRecord]) -> MachineTotals:
    sums = _summed(records)
    return MachineTotals(
        lane.removeprefix(MACHINE), sums.get("work", 0.0), sums.get("way", 0.0),
        sums.get("held", 0.0), sum(record.turns for record in records),
        max(record.clock_s for record in records),
    )  # fmt: skip


def _resets(records: Sequence[SpanRecord]) -> ResetTimes:
    """Return the resets in all records."""
    total = NO_RESETS
    for r in records:
        total = total.plus(ResetTimes(r.resets, r.reset_s, r.reset_square, r.reset_wait_s))
    return total
