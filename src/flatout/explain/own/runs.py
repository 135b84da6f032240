"""`flatout explain RUN_DIR`: what a run of Flatout waited for, from what its folder holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from flatout.config.placement import Placement, parse
from flatout.config.schema import TrainConfig
from flatout.errors import FlatoutError, UsageError, one_line
from flatout.explain.diagnosis import Diagnosis, Lane, Usage
from flatout.explain.own.older import from_summary
from flatout.explain.own.proposals import WORTHWHILE
from flatout.explain.own.rules import findings, headline, verdict
from flatout.hardware.monitor import MonitorSample, read_samples
from flatout.planning.facts import RunFacts, facts, mean_use
from flatout.spans import OF_SPAN, PHASES
from flatout.storage import nofollow
from flatout.storage.run_folder import load_config
from flatout.storage.span_records import (
    DEVICES,
    MAIN,
    SPANS,
    WAIT_LEARNER,
    Begin,
    SpanRecord,
    json_lines,
    read_lines,
    steady,
)

CROWDED = 0.25
"""Share of the cores that others use, from which on it is said."""

MOST_RECORDS, MOST_SAMPLES = 400, 1000
"""More than these are too fine to be drawn, and are joined."""


@dataclass(frozen=True)
class Evidence:
    """Everything that a run is explained from; plain values, which can be saved.

    Attributes:
        subject: what it is called: its folder.
        config: its settings.
        placement: as text; of an ``auto`` run what was chosen.
        lines: of spans.jsonl; a run without them is explained from the two that follow.
        samples: of devices.jsonl.
        summary: its summary.json, or None where it has not ended.
        row: the last row of its metrics, or None.
    """

    subject: str
    config: TrainConfig
    placement: str
    lines: Sequence[Mapping[str, Any]] = ()
    samples: Sequence[MonitorSample] = ()
    summary: Mapping[str, Any] | None = None
    row: Mapping[str, Any] | None = field(default=None)

    def as_json(self) -> dict[str, Any]:
        """What ``--save`` writes."""
        return {
            "kind": "run",
            "subject": self.subject,
            "settings": self.config.flat(),
            "placement": self.placement,
            "lines": list(self.lines),
            "samples": [sample.as_json() for sample in self.samples],
            "summary": self.summary,
            "row": self.row,
        }

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Evidence:
        """What `as_json` gave.

        Raises:
            UsageError: it is something else.
        """
        from flatout.config.settings import resolve

        try:
            settings = dict(values["settings"])
            return Evidence(
                str(values["subject"]), resolve(str(settings["algorithm"]), settings),
                str(values["placement"]), values["lines"],
                [MonitorSample.from_json(sample) for sample in values["samples"]],
                values["summary"], values["row"],
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"this is no saved evidence of a run ({error}).") from error


def read_run(path: Path) -> Evidence:
    """What a run's folder holds, also while the run goes on or after it was killed.

    Raises:
        UsageError: there is no such folder, or no run in it.
        CheckpointError: its settings cannot be read.
    """
    if not path.exists():
        raise UsageError(f"there is no folder {path}.")
    if not path.is_dir():
        raise UsageError(f"{path} is a file; explain takes a run's folder.")
    config = load_config(path, None)  # nothing that the folder names is called here
    said = _json(path / "config.json")
    rows = json_lines(path / "metrics.jsonl")
    return Evidence(
        str(path), config, str(said.get("placement", config.run.placement)),
        json_lines(path / SPANS), read_samples(path / DEVICES),
        _json(path / "summary.json") or None, rows[-1] if rows else None,
    )  # fmt: skip


def diagnose_run(path: Path) -> Diagnosis:
    """The diagnosis of a run's folder.

    Raises:
        UsageError: there is no run.
        FlatoutError: the run has made no iteration yet.
    """
    return diagnose_evidence(read_run(path))


def diagnose_evidence(evidence: Evidence) -> Diagnosis:
    """The diagnosis of a run. Pure.

    Raises:
        FlatoutError: it has made no iteration yet, or its files hold what no run writes.
    """
    try:
        return _diagnosed(evidence)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise FlatoutError(
            f"{evidence.subject} holds damaged records of its time ({type(error).__name__}: "
            f"{one_line(error)[:200]}); remove its {SPANS} and {DEVICES} to do without them."
        ) from error


def _diagnosed(evidence: Evidence) -> Diagnosis:
    known = _facts(evidence)
    if known is None:
        raise FlatoutError(
            f"{evidence.subject} holds no finished iteration yet: there is nothing to explain."
        )
    given, apart, notes, begins, records = known
    found = findings(given)
    if evidence.summary is None:
        notes = [*notes, "The run has not ended: what it has written so far is explained."]
    notes += [note for sample in evidence.samples for note in sample.notes]
    others = (given.use.cpu_all or 0.0) - (given.use.cpu or 0.0)
    if given.use.cpu is not None and others > CROWDED:
        notes.append(
            f"Other programs used {100 * others:.0f} % of the cores: everything took longer than "
            "it does alone."
        )
    return Diagnosis(
        subject=evidence.subject,
        verdict=verdict(found),
        headline=headline(found, given),
        findings=found,
        seconds=given.seconds,
        apart=tuple((what, seconds) for what, seconds in apart if seconds > 0.0),
        phases=given.phases,
        lanes=lanes(records),
        usage=usage(evidence.samples),
        cores=given.cores,
        machine=begins[-1].machine if begins else "",
        notes=tuple(dict.fromkeys(notes)),
    )


def closing(diagnosis: Diagnosis | None) -> dict[str, Any]:
    """What a run's summary says of it: docs/metrics.md describes the keys."""
    from flatout.explain.report import advice

    if diagnosis is None:
        return {"verdict": None, "headline": "", "try": None}
    tried = advice(diagnosis)
    worth = tried is not None and tried.gain > WORTHWHILE
    return {
        "verdict": diagnosis.verdict,
        "headline": diagnosis.headline,
        "try": json.loads(json.dumps(asdict(tried))) if tried is not None and worth else None,
    }


# --- What the folder says -----------------------------------------------------------------------

Known = tuple[RunFacts, list[tuple[str, float]], list[str], list[Begin], list[SpanRecord]]


def _facts(evidence: Evidence) -> Known | None:
    """The rules' numbers, (what, seconds) left out, notes, and what the time line is drawn of."""
    begins, records = read_lines(dict(line) for line in evidence.lines)
    totals, apart = steady(records)
    notes = list[str]()
    if totals is None:
        old = from_summary(evidence.summary, evidence.row)
        if old is None:
            return None
        totals, apart, note = old
        notes.append(note)
    settings = evidence.config.flat()
    last = begins[-1] if begins else Begin(0.0, placement=evidence.placement)
    compiling = sum(min(one.compile_s, one.startup_s) for one in begins)  # some said more
    starts = [("start-up", sum(one.startup_s for one in begins) - compiling)]
    starts.append(("compiling", compiling))
    cores = last.cores
    if not begins:
        cores = evidence.samples[-1].cores if evidence.samples else 1
    given = facts(
        totals,
        settings=settings,
        placement=_placement(last.placement if begins else evidence.placement),
        envs=evidence.config.env.envs,
        cores=cores,
        use=mean_use(_during(evidence.samples, records)),
        gpus=last.gpus,
        images=last.images,
    )
    return given, [*starts, *apart], [*notes, *totals.notes], begins, records


def _during(
    samples: Sequence[MonitorSample], records: Sequence[SpanRecord]
) -> Sequence[MonitorSample]:
    """The samples of the steady state, where there are any."""
    first = next((s.t for s in records if not s.first and not s.closing), None)
    chosen = [one for one in samples if first is not None and one.t - one.seconds >= first - 0.5]
    return chosen or samples


def _placement(text: str) -> Placement:
    try:
        return parse(text)
    except UsageError:  # auto, of a run that never came to choose
        return Placement()


def _json(path: Path) -> dict[str, Any]:
    """A file's JSON object; empty where there is none."""
    try:
        value = json.loads(nofollow.read(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# --- What the reports draw ----------------------------------------------------------------------


def lanes(records: Sequence[SpanRecord]) -> tuple[Lane, ...]:
    """The time line: within a stretch the phases follow one another, as long as they took."""
    order = list(PHASES)
    names = list(dict.fromkeys(one.lane for one in records))
    drawn: list[Lane] = []
    for name in names:
        own = [one for one in records if one.lane == name]
        together = -(-len(own) // MOST_RECORDS)
        spans: list[tuple[float, float, str]] = []
        for place in range(0, len(own), together):
            group = own[place : place + together]
            spent: dict[str, float] = {}
            for one in group:
                for span, seconds in one.spans.items():
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
        drawn.append(Lane(name, tuple(spans)))
    return tuple(drawn)


def usage(samples: Sequence[MonitorSample]) -> tuple[Usage, ...]:
    """The hardware's samples as the reports draw them."""
    every = -(-len(samples) // MOST_SAMPLES) if samples else 1
    return tuple(
        Usage(
            t=sample.t,
            cpu=sample.cpu,
            cpu_all=sample.cpu_all,
            gpu_busy=tuple(gpu.busy or 0.0 for gpu in sample.gpus),
            gpu_full=tuple(gpu.full for gpu in sample.gpus),
            gpu_memory=tuple(gpu.used_mb / max(gpu.total_mb, 1) for gpu in sample.gpus),
            rss_mb=sample.rss_mb,
        )
        for sample in samples[::every]
    )


def recent_phases(records: Sequence[SpanRecord], placement: Placement) -> dict[str, float]:
    """Shares of the last seconds by phase, for the live display; empty before there are any."""
    known = [replace(one, first=False) for one in records]
    totals, _ = steady(known)
    if totals is None:
        return {}
    return facts(totals, settings={}, placement=placement, envs=1, cores=1).phases
