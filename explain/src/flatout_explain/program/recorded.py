"""Join the trace of a program's own profiler with the observation of the program (``--record``)."""

from __future__ import annotations

import gzip
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flatout_explain import cards
from flatout_explain.cards import WAITS_FOR
from flatout_explain.causes import UNKNOWN
from flatout_explain.diagnosis import Diagnosis, Lane
from flatout_explain.errors import FlatoutError, with_full_stop
from flatout_explain.program.facts import Facts
from flatout_explain.report import duration, place_words
from flatout_explain.trace.events import Trace
from flatout_explain.trace.facts import Found, timeline
from flatout_explain.trace.idle import PARTS, DeviceUse
from flatout_explain.trace.intervals import covered, length, union_of
from flatout_explain.trace.load import load
from flatout_explain.trace.operators import operators

MARK = "flatout explain"
"""The name of the event that the probe adds to a trace at a time that it reports."""

LEARNING = ("launch-bound", "compute-bound", "transfer-bound", UNKNOWN)
"""Findings that operators are evidence of."""


@dataclass(frozen=True)
class Recorded:
    """A trace that a process of the program has recorded."""

    process: int  # the process's position in the evidence
    trace: Trace  # its window is the recording
    origin: float  # when the trace's time begins, on the machine's monotonic clock

    @property
    def seconds(self) -> float:
        """How long was recorded."""
        begin, end = self.trace.window
        return end - begin


def join(
    diagnosis: Diagnosis, facts: Facts, rows: Iterable[Sequence[dict[str, Any]]],
    save: str | None = None,
) -> Diagnosis:  # fmt: skip
    """Add to a diagnosis what the program's profiler has recorded.

    Args:
        facts: what was diagnosed.
        rows: the probe's lines, by process.
        save: the file of the evidence; traces are kept next to it.
    """
    reports = {each[0]["pid"]: row for each in rows for row in each if row["k"] == "recorded"}
    found, notes = list[Recorded](), list[str]()
    for index, process in enumerate(facts.evidence.processes):
        report = reports.get(process.pid, {})
        if "path" in report:
            try:
                found.append(_read(report, index))
            except FlatoutError as error:
                notes.append(f"The recording of {report['of']}'s profiler was lost: {error}")
    whys = dict.fromkeys(row["why"] for row in reports.values() if "why" in row)
    if not found and not notes:
        notes += [f"The program's profiler recorded nothing: {why}." for why in whys]
        early = "the program or the observation ended before the program was steady for long enough"
        notes = notes or [f"The program's profiler recorded nothing: {early}."]
    if save is not None:
        notes += _keep([row for row in reports.values() if "path" in row], save)
    result = replace(diagnosis, notes=(*diagnosis.notes, *notes))
    if not found:
        return result
    with_devices = [one for one in found if one.trace.devices]
    if with_devices:
        return _with_devices(result, with_devices, facts)
    return _with_operators(result, found, facts)


def _read(report: dict[str, Any], process: int) -> Recorded:
    """Read a trace; its window is the time of the recording, by the mark in it."""
    (trace,) = load(Path(report["path"]))
    marks = [
        row.events["begin"][row.events["name"] == trace.names.index(MARK)]
        for row in trace.threads
        if MARK in trace.names
    ]
    begin = next((float(times[0]) for times in marks if len(times)), trace.extent[0])
    window = begin, begin + float(report["seconds"])
    return Recorded(process, replace(trace, recorded=window), float(report["t"]) - begin)


def _keep(reports: Sequence[dict[str, Any]], save: str) -> Iterator[str]:
    """Copy traces next to a file; yields why one could not be."""
    for report in reports:
        path = Path(report["path"])
        ending = "".join(path.suffixes)
        target = f"{save}.{path.name}" if len(reports) > 1 else f"{save}{ending}"
        try:
            if ending == ".xplane.pb":
                shutil.copyfile(path, target)
            else:
                target += ".gz"
                with path.open("rb") as source, gzip.open(target, "wb", 6) as packed:
                    shutil.copyfileobj(source, packed)
        except OSError as error:
            yield f"The trace could not be kept as {target}: {with_full_stop(error)}"


# --- On the host ------------------------------------------------------------------------------


def _with_operators(diagnosis: Diagnosis, found: Sequence[Recorded], facts: Facts) -> Diagnosis:
    """Add the operators of the process that learns, or else of the one that ran most of them.

    They are evidence of the finding about learning, and shown by themselves where that is not the
    first.
    """
    learner = None if facts.line.driver is None else facts.line.driver.process
    every = [(operators(one.trace), one) for one in found]
    most, one = max(every, key=lambda pair: (pair[1].process == learner, pair[0].total))
    words, seconds = most.words(one.seconds), one.seconds
    if not words:
        why = (
            f"The recording of {duration(seconds)} contains no operators: none ran during it, or "
            "they ran in a thread other than the main one."
        )
        return replace(diagnosis, notes=(*diagnosis.notes, why))
    findings = list(diagnosis.findings)
    at = next((i for i, finding in enumerate(findings) if finding.id in LEARNING), None)
    if at is not None:
        findings[at] = replace(findings[at], evidence=(*findings[at].evidence, words))
    shown = () if at == 0 else (words,)
    return replace(diagnosis, findings=tuple(findings), recorded=shown)


# --- On devices -------------------------------------------------------------------------------


def _with_devices(diagnosis: Diagnosis, found: Sequence[Recorded], facts: Facts) -> Diagnosis:
    """Add how busy the recorded devices were, what they waited for, and their timelines."""
    evidence = facts.evidence
    sentences, busy, lanes = list[str](), dict[str, float](), list(diagnosis.lanes)
    for one in found:
        devices = Found.of([one.trace])
        owner = f" (process {evidence.processes[one.process].pid})" if found[1:] else ""
        for name, idle in devices.devices:
            busy[name + owner] = idle.busy
            later = one.trace.window[0] + one.origin - evidence.began
            spans = tuple((a + later, b + later, phase) for a, b, phase in timeline(idle))
            lanes.append(Lane(f"{name}{owner} recorded", spans))
        if devices.devices:
            sentences.append(_sentence(one, devices, facts) + owner)
    return replace(
        diagnosis, recorded=tuple(sentences), busy=busy | diagnosis.busy, lanes=tuple(lanes)
    )


def _sentence(one: Recorded, found: Found, facts: Facts) -> str:
    """Return in words how busy the devices of a trace were, and what they waited for."""
    shares, places = waits(one, [idle for _, idle in found.devices], facts)
    for part in ("queued", "communicate", "copy"):
        shares[part] = shares.get(part, 0.0) + found.share(part)
    return cards.headline(
        len(found.devices), found.share("learn"), shares, lambda phase: places.get(phase, ""),
        f"of the {duration(one.seconds)} that {one.trace.profiler}'s profiler recorded",
    )  # fmt: skip


def waits(
    one: Recorded, devices: Sequence[DeviceUse], facts: Facts
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the shares of the devices' time in which they wait for the host, by what its main
    thread was seen to do meanwhile.

    Returns:
        Shares by phase (``unknown``: nothing was seen), and each phase's heaviest line in brackets.
    """
    moments = [
        moment
        for track in facts.line.tracks
        if track.process == one.process and track.main
        for moment in track.moments
    ]
    seconds: defaultdict[str, float] = defaultdict(float)
    lines: defaultdict[str, defaultdict[tuple[str, int], float]] = defaultdict(
        lambda: defaultdict(float)
    )
    # Begin and end of each moment, in order: none begins before the last has ended.
    edges = np.maximum.accumulate([t for m in moments for t in (m.t - m.dt, m.t)])
    for idle in devices:
        hosts = [part for part in PARTS if part not in ("queued", "communicate")]
        spans = [idle.parts[part] for part in hosts if part in idle.parts]
        late = union_of(spans) + one.origin
        seconds["unknown"] += length(late)
        if not moments or not len(late):
            continue
        for moment, share in zip(moments, covered(late, edges)[::2].tolist(), strict=True):
            phase = moment.shown if moment.shown in WAITS_FOR else "other"
            seconds[phase] += share
            seconds["unknown"] -= share
            line = facts.line_of(one.process, moment.mark.site)
            if line is not None:
                lines[phase][line] += share
    total = sum(idle.seconds for idle in devices)
    places = {
        phase: f" ({place_words(max(seen.items(), key=lambda item: item[1])[0])})"
        for phase, seen in lines.items()
    }
    return {phase: max(share, 0.0) / total for phase, share in seconds.items()}, places
