"""From evidence to findings: pure rules, numbers in, sentences out.

The bottleneck's phase comes first; if that is learning, the mechanism inside it. docs/explain.md
has the rules and the formula of each gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flatout.explain.causes import CAUSE_OF, CAUSES, HEALTHY, UNKNOWN
from flatout.explain.diagnosis import Diagnosis, Finding, Lane, Usage
from flatout.explain.program import devices, remedies
from flatout.explain.program.evidence import Evidence
from flatout.explain.program.facts import Facts, facts_of
from flatout.explain.program.timeline import LEARNING, Timeline
from flatout.explain.report import WORTHWHILE, percent
from flatout.planning.gains import MODELLED
from flatout.spans import PHASES

LEAST_SHARE = 0.04  # minimum share of a finding
MOST = 0.5  # from this share on, a cause comes first, whatever its gain
FEW = 0.2  # if all causes are below this share, no single cause is named

SHORTEST_S = 0.5


def diagnose(evidence: Evidence) -> Diagnosis:
    """The verdict and its findings."""
    facts = facts_of(evidence)
    ranked = findings(facts)
    if facts.line.part:  # gains in a part of a cycle may not hold for the rest
        ranked = [
            replace(finding, gain=1.0, low=1.0, high=1.0, kind=MODELLED) for finding in ranked
        ]
    gpus = evidence.machine["gpus"]
    cards = f"{len(gpus)} x {gpus[0]}" if gpus else "no GPU"
    first = ranked[0].id if ranked else UNKNOWN
    verdict = HEALTHY if first == "compute-bound" else first
    return Diagnosis(
        subject=" ".join(evidence.command),
        verdict=verdict,
        headline=_headline(facts, ranked),
        part=facts.line.part,
        findings=tuple(ranked),
        seconds=facts.blame.seconds,
        apart=tuple(facts.line.apart),
        phases={p: facts.blame.shares[p] for p in PHASES if facts.blame.shares.get(p)},
        lanes=_lanes(evidence, facts.line),
        usage=tuple(Usage.of(sample, evidence.began) for sample in evidence.monitor),
        cores=facts.cores,
        machine=f"{evidence.machine['cpu']}, {evidence.machine['cores']} cores, {cards}",
        notes=tuple(evidence.notes) + tuple(_notes(facts)),
    )


def findings(facts: Facts) -> list[Finding]:
    """All findings, best first."""
    if facts.blame.seconds < SHORTEST_S:
        return []
    learn = facts.share(*LEARNING)
    shares = [
        (share, remedies.finding(cause, facts, share))
        for phase, cause in CAUSE_OF.items()
        if (share := facts.share(phase)) >= LEAST_SHARE
    ]
    if learn >= LEAST_SHARE:
        shares += [(learn, finding) for finding in _mechanisms(facts, learn)]
    if (oversubscription := remedies.oversubscribed(facts)) is not None:
        shares.append((2.0, oversubscription))  # it slows everything else down
    return devices.ranked(_ranked(shares), devices.findings(facts.evidence, learn))


def _ranked(shares: Sequence[tuple[float, Finding]]) -> list[Finding]:
    """The finding to act on first, then by gain; `shares` are (the phase's share, finding)."""
    by_share = sorted(shares, key=lambda pair: (-pair[0], -pair[1].share))
    ranked = [finding for _, finding in sorted(by_share, key=lambda pair: -pair[1].gain)]
    if by_share and (by_share[0][0] >= MOST or ranked[0].gain <= WORTHWHILE):
        first = by_share[0][1]
        ranked = [first, *(finding for finding in ranked if finding is not first)]
    return ranked


def _mechanisms(facts: Facts, learn: float) -> list[Finding]:
    """Learning's mechanisms, largest first, without small ones."""
    transfer, communicate = facts.share("transfer"), facts.share("communicate")
    rest = max(0.0, learn - transfer - communicate)
    launch = rest * (facts.learning.launch or 0.0)
    shares = {
        "transfer-bound": transfer, "communication-bound": communicate,
        "launch-bound": launch, "compute-bound": rest - launch,
    }  # fmt: skip
    return [
        remedies.finding(cause, facts, share)
        for cause, share in sorted(shares.items(), key=lambda item: -item[1])
        if share >= LEAST_SHARE
    ]


# --- Around the findings ----------------------------------------------------------------------


def _headline(facts: Facts, ranked: Sequence[Finding]) -> str:
    if not ranked:
        return "too little was seen to say what the time goes to"
    first = ranked[0]
    summary = f"{CAUSES[first.id]} ({percent(first.share)})"
    if facts.line.part:
        return f"only a part was seen, {facts.line.part}; in it {summary}"
    causes = [finding.share for finding in ranked if finding.id != "compute-bound"]
    if first.id != "compute-bound" and max(causes) < FEW:
        return f"no cause holds a fifth of the time; what gains most: {summary}"
    return summary


def _notes(facts: Facts) -> list[str]:
    notes = []
    if facts.blame.seconds < SHORTEST_S:
        notes.append(
            f"Only {facts.blame.seconds:.1f} s could be explained: run it longer, or raise "
            "--seconds."
        )
    elif facts.line.part:
        notes.append(
            f"Nothing is predicted: {facts.line.part} was seen in {facts.blame.seconds:.0f} s. "
            "Raise --seconds."
        )
    processes = facts.evidence.processes
    notes += [
        f"The probe of process {process.pid} ended early ({process.failure})."
        for process in processes
        if process.failure
    ]
    return notes + [
        f"Process {process.pid} was sampled by a second thread ({process.by_thread}): small pieces "
        "of its own Python code seem to cost less than they do."
        for process in processes
        if process.by_thread
    ]


def _lanes(evidence: Evidence, line: Timeline) -> tuple[Lane, ...]:
    """The timeline: the driver first, without threads that only wait."""
    lanes = []
    for track in sorted(line.tracks, key=lambda track: track is not line.driver):
        spans: list[tuple[float, float, str]] = []
        for moment in track.moments:
            phase = "wait" if moment.mark.waits else moment.mark.phase
            phase = {"import": "other", "first compilation": "compile"}.get(phase, phase)
            end = moment.t - evidence.began
            begin = moment.t - moment.dt - evidence.began
            if spans and spans[-1][2] == phase and begin - spans[-1][1] < 0.02:
                spans[-1] = (spans[-1][0], end, phase)
            else:
                spans.append((max(0.0, begin), end, phase))
        if track is line.driver or any(phase != "wait" for _, _, phase in spans):
            lanes.append(Lane(track.name, tuple(spans)))
    return tuple(lanes)
