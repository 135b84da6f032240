"""`flatout explain RUN_DIR`: the diagnosis of a run from its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from flatout.config.placement import Placement, parse
from flatout.config.schema import TrainConfig
from flatout.config.settings import resolve
from flatout.errors import FlatoutError, UsageError, damage
from flatout.explain.facts import facts, mean_use, phase_shares
from flatout.explain.machines import machine_times
from flatout.explain.rules import findings, headline
from flatout.explain.settings import arguments
from flatout.output import shell_word
from flatout.planning.answer import Answer
from flatout.planning.machine import SHIPPED, Machine, this_machine
from flatout.spans import OF_SPAN
from flatout.storage.run_folder import POPULATION, load_values
from flatout.storage.span_records import (
    DEVICES,
    MACHINE,
    MAIN,
    MEASURING,
    SPANS,
    WAIT_LEARNER,
    SpanRecord,
    Totals,
    json_lines,
    read_lines,
    read_samples,
    steady,
)
from flatout_explain.cards import card_uses
from flatout_explain.cores import contended
from flatout_explain.diagnosis import STEPS, UPDATES, Diagnosis, Finding, WorkRate, lanes, verdict
from flatout_explain.documents import convert
from flatout_explain.hardware.core_use import samples_within
from flatout_explain.hardware.cores import usable_cores
from flatout_explain.hardware.monitor import MonitorSample, merged
from flatout_explain.phases import PHASES
from flatout_explain.ranking import block_ends, interval, tied
from flatout_explain.report import advice

MOST_RECORDS, MOST_SAMPLES = 400, 1000
"""Maximum to be drawn: beyond it records are merged and samples left out."""


@dataclass(frozen=True)
class Evidence:
    """The input of a run's diagnosis: plain values, which can be saved."""

    subject: str  # the run's folder
    config: TrainConfig  # its settings
    lines: Sequence[Mapping[str, Any]] = ()  # of spans.jsonl
    samples: Sequence[MonitorSample] = ()  # of devices.jsonl
    ended: bool = False  # whether the run has ended
    machine: Machine = SHIPPED  # what planning has measured of it
    plan: Answer | None = None  # and of this run
    parent: str | None = None  # the folder of the run from which it started
    repeatable: bool = True  # whether a command may be shown that trains the same again
    in_python: bool = False  # whether a part of the run was given in Python

    def as_json(self) -> dict[str, Any]:
        """Return the evidence as ``--save`` writes it."""
        return {
            "kind": "run",
            "subject": self.subject,
            "settings": self.config.flat(),
            "lines": list(self.lines),
            "samples": [sample.as_json() for sample in self.samples],
            "ended": self.ended,
            "machine": asdict(self.machine),
            "plan": None if self.plan is None else self.plan.as_json(),
            "parent": self.parent,
            "repeatable": self.repeatable,
            "in_python": self.in_python,
        }

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Evidence:
        """Return the evidence from `as_json`'s values; raise `UsageError` for others."""
        try:
            saved = convert(values, _Saved)
            settings, plan = saved.settings, saved.plan
            return Evidence(
                saved.subject, resolve(str(settings["algorithm"]), settings), saved.lines,
                saved.samples, saved.ended, saved.machine,
                None if plan is None else Answer.from_json(plan), saved.parent, saved.repeatable,
                saved.in_python,
            )  # fmt: skip
        except (KeyError, ValueError) as error:
            raise UsageError(f"this is not saved evidence of a run: {damage(error)}.") from error


class _Saved(msgspec.Struct):
    """Evidence as `Evidence.as_json` writes it."""

    subject: str
    settings: dict[str, Any]
    lines: list[dict[str, Any]]
    samples: list[MonitorSample]
    ended: bool
    machine: Machine
    plan: dict[str, Any] | None
    parent: str | None = None
    repeatable: bool = True
    in_python: bool = False


def read_run(path: Path) -> Evidence:
    """Read a run's folder, also while the run goes on or after it was killed.

    Raises:
        UsageError: there is no such folder, or no run in it.
        CheckpointError: its settings cannot be read.
    """
    if not path.exists():
        raise UsageError(f"there is no folder {path}.")
    if not path.is_dir():
        raise UsageError(f"{path} is a file; name the folder of a run.")
    if (path / POPULATION).exists():
        members = sorted(one.name for one in (path / "members").glob("*") if (one / SPANS).exists())
        if not members:
            raise UsageError(f"{path} is a population in which no run has begun: try again later.")
        raise UsageError(
            f"{path} is a population of {len(members):,} runs; explain one of them: "
            f"flatout explain {shell_word(path / 'members' / members[0])}."
        )
    config, values = load_values(path, None, "config.json")  # runs no code that the folder names
    parent = values.get("parent")
    ended = (path / "summary.json").is_file()
    return Evidence(
        str(path),
        config,
        json_lines(path / SPANS),
        read_samples(path / DEVICES),
        ended,
        this_machine(usable_cores()),
        parent=parent if isinstance(parent, str) else None,
    )


def diagnose_evidence(evidence: Evidence) -> Diagnosis:
    """Diagnose a run. Pure.

    Raises:
        FlatoutError: it has recorded no iteration yet, or its files are damaged.
    """
    try:
        diagnosis = _diagnosed(evidence)
        diagnosis.check()
        return diagnosis
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise FlatoutError(
            f"{evidence.subject} cannot be explained: its {SPANS} or {DEVICES} is damaged "
            f"({damage(error)})."
        ) from error


def _diagnosed(evidence: Evidence) -> Diagnosis:
    begins, records = read_lines(dict(line) for line in evidence.lines)
    totals, excluded = steady(records)
    if totals is None or not begins:
        raise FlatoutError(
            f"{evidence.subject} has no finished iteration in its {SPANS}: there is nothing to "
            "explain."
        )
    samples, last = evidence.samples, begins[-1]
    explained = _explained(records, totals)
    steady_samples = samples_within(samples, *explained)
    facts_ = facts(
        totals,
        config=evidence.config,
        placement=parse(last.placement),
        envs=evidence.config.env.envs,
        cores=last.cores,
        use=mean_use(steady_samples),
        gpus=last.gpus,
        images=last.images,
        could_have_spares=last.could_have_spares,
        machine=evidence.machine if evidence.machine.cores == last.cores else SHIPPED,
        plan=evidence.plan,
    )
    parts, used = _blocks(records, totals, facts_.placement), card_uses(samples, steady_samples)
    ranked = tuple(_with_interval(finding, parts) for finding in findings(facts_, used))
    notes = list(totals.notes)
    if not totals.updates:
        notes.append(
            "No update was made, so the time that learning takes is unknown and nothing is "
            "proposed: let the run continue, and explain it again."
        )
    if not evidence.ended:
        notes.append("The run has not ended: only what it has written so far is explained.")
    notes += [note for sample in samples for note in sample.notes]
    if (crowded := contended(facts_.use.cores)) is not None:
        sentences = "; ".join(crowded.evidence)
        notes.append(f"Other programs slowed this run: {sentences}. Stop them, and run it again.")
    compiling = sum(begin.compile_s for begin in begins)
    measuring = sum(begin.plan_s for begin in begins)
    starting = sum(begin.startup_s for begin in begins) - compiling - measuring
    later = dict(excluded)
    measuring += later.pop(MEASURING, 0.0)
    excluded = [("start-up", starting), ("compiling", compiling), (MEASURING, measuring)]
    excluded += later.items()
    every = max(-(-len(samples) // MOST_SAMPLES), 1)
    return Diagnosis(
        subject=evidence.subject,
        verdict=verdict(ranked),
        headline=headline(ranked, facts_, used),
        findings=ranked,
        seconds=facts_.seconds,
        apart=tuple((what, seconds) for what, seconds in excluded if seconds > 0.0),
        phases=facts_.phases,
        resets=facts_.resetting,
        machines=machine_times(facts_),
        lanes=lanes(_spans(records)),
        explained=explained,
        usage=tuple(merged(samples[at : at + every]) for at in range(0, len(samples), every)),
        cores=facts_.cores,
        machine=last.machine,
        notes=tuple(dict.fromkeys(notes)),
        part="" if totals.updates else "no learning yet",
        tie=tuple(finding.id for finding in tied(ranked)),
        kind="run",
        work={
            unit: WorkRate(number / facts_.seconds)
            for unit, number in ((STEPS, totals.steps), (UPDATES, totals.updates))
            if number > 0 and facts_.seconds > 0.0
        },
    )


def _blocks(
    records: Sequence[SpanRecord], totals: Totals, placement: Placement
) -> list[tuple[dict[str, float], float]]:
    """Return shares of the time by phase, and seconds, of each block of whole iterations in the
    steady state; empty before the first update."""
    if not totals.updates:
        return []
    useful = [
        r for r in records
        if r.lane == MAIN and r.iterations and r.t >= totals.begin and not (r.first or r.closing)
    ]  # fmt: skip
    if not useful:
        return []
    ends = block_ends(useful[0].t, useful[-1].end, [record.end for record in useful])
    found = []
    for a, b in pairwise((useful[0].t, *ends)):
        within = [replace(r, updates=max(r.updates, 1)) for r in records if a < r.end <= b]
        part, _ = steady(within)
        if part is not None:
            shares = phase_shares(part)
            found.append((shares, part.seconds))
    return found


def _with_interval(finding: Finding, blocks: Sequence[tuple[dict[str, float], float]]) -> Finding:
    """Return a finding with the interval of its share, from its phases' shares of some blocks. That
    of computing decides nothing: a verdict names what a change can shorten."""
    if finding.id == "compute-bound" or not finding.phases:
        return finding
    parts = [(sum(map(shares.__getitem__, finding.phases)) * s, s) for shares, s in blocks]
    return replace(finding, interval=interval(finding.share, parts))


def closing(diagnosis: Diagnosis | None) -> dict[str, Any]:
    """Return the diagnosis in a run's summary: docs/metrics.md describes the keys."""
    if diagnosis is None:
        return {"verdict": None, "headline": "", "try": None, "steady": None}
    best = advice(diagnosis)
    tried = None if best is None else best.as_json()
    if tried is not None and best is not None and best.setting:
        tried["arguments"] = arguments(best.setting)
    return {
        "verdict": diagnosis.verdict,
        "headline": diagnosis.headline,
        "try": tried,
        "steady": {"seconds": diagnosis.seconds, "phases": diagnosis.phases,
                   "left_out": dict(diagnosis.apart)},
    }  # fmt: skip


def _explained(records: Sequence[SpanRecord], totals: Totals) -> tuple[float, float]:
    """Return when the explained time began and ended, in seconds of the run."""
    mains = [r for r in records if r.lane == MAIN and r.iterations and r.t >= totals.begin]
    useful = [record for record in mains if not record.closing] or mains
    return totals.begin, useful[-1].end


def _spans(
    records: Sequence[SpanRecord],
) -> Iterator[tuple[str, list[tuple[float, float, str]]]]:
    """Yield each lane's spans: within a record, phases follow one another with their durations."""
    order = list(PHASES)
    by_lane: dict[str, list[SpanRecord]] = {}
    for record in records:
        by_lane.setdefault(record.lane, []).append(record)
    for name, of_lane in by_lane.items():
        if name.startswith(MACHINE):  # its workers have lanes
            continue
        together = -(-len(of_lane) // MOST_RECORDS)
        spans: list[tuple[float, float, str]] = []
        for first in range(0, len(of_lane), together):
            group = of_lane[first : first + together]
            spent: dict[str, float] = {}
            for record in group:
                for span, seconds in record.spans.items():
                    phase = "wait" if span == WAIT_LEARNER else OF_SPAN.get(span, "other")
                    spent[phase] = spent.get(phase, 0.0) + max(seconds, 0.0)
            at, end = group[0].t, group[-1].end
            rest = "other" if name == MAIN else "wait"
            free = (end - at) - sum(spent.values())
            spent[rest] = spent.get(rest, 0.0) + max(free, 0.0)
            for phase in sorted(spent, key=order.index):
                until = min(at + spent[phase], end)
                if round(until, 4) > round(at, 4):
                    spans.append((round(at, 4), round(until, 4), phase))
                    at = until
        yield name, spans


def recent_phases(records: Sequence[SpanRecord], placement: Placement) -> dict[str, float]:
    """Return shares of the last seconds by phase, for the live display; may be empty."""
    totals, _ = steady([replace(record, first=False) for record in records])
    if totals is None:
        return {}
    return phase_shares(totals)
