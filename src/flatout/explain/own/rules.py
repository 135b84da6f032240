"""The rules for Flatout's runs: numbers in, ranked findings out. Pure.

First the phase that is the bottleneck, then the mechanism inside learning, then devices. Each rule
proposes only valid settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from flatout.explain import cards
from flatout.explain.cards import CardUse
from flatout.explain.causes import CAUSE_OF, DEVICES, OVERLAPPING
from flatout.explain.diagnosis import Finding
from flatout.explain.own import collecting, learning, overheads
from flatout.explain.own.costs import LEARN, Costs, costs
from flatout.explain.own.proposals import WORTH_SAYING
from flatout.explain.ranking import LOST, ordered, tied
from flatout.explain.report import percent, tie_words
from flatout.planning.facts import RunFacts

LEARNING_HOLDS = 0.5  # from this share on, learning itself is the bottleneck

Rule = Callable[[RunFacts, Costs, float], Finding | None]

RULES: dict[Rule, tuple[str, ...]] = {
    collecting.env: ("env",), collecting.act: ("act",), collecting.ipc: ("ipc",),
    collecting.lockstep: ("wait",), learning.replay: ("replay",), learning.images: ("input",),
    learning.fused: ("fused",), learning.transfer: ("transfer", "publish"),
    learning.turns: (*LEARN, "publish", "other"), learning.arithmetic: ("learn",),
    overheads.writing: ("io",), overheads.evaluation: ("eval",),
    overheads.compiling: ("compile",), overheads.oversubscribed: (),
    overheads.throttled: (), overheads.gpu_unused: ("learn",), overheads.memory: (),
}  # fmt: skip
"""Rules and their phases. A rule receives their share, and is skipped if it is small."""

WEIGH = {
    learning.turns, learning.arithmetic, overheads.oversubscribed, overheads.throttled,
    overheads.gpu_unused, overheads.memory,
}  # fmt: skip
"""Rules that find out themselves how much of the time they concern."""


def findings(facts: RunFacts) -> tuple[Finding, ...]:
    """All findings, at least one: first the one that the verdict names, then the others in the
    order of `ordered`."""
    results: list[Finding] = []
    cost = costs(facts)
    for rule, phases in RULES.items():
        share = sum(facts.phases[phase] for phase in phases)
        finding = rule(facts, cost, share) if rule in WEIGH or share >= WORTH_SAYING else None
        if finding is not None:
            results.append(replace(finding, phases=phases))
    named = _named(results, facts) or _unattributed(facts)
    others = ordered(finding for finding in results if finding is not named)
    crowded = [one for one in others if one.id in OVERLAPPING and one.share >= LOST]
    if crowded and named.id == "compute-bound":  # it is no healthy run
        return *crowded, named, *(finding for finding in others if finding not in crowded)
    return named, *others


def headline(ranked: tuple[Finding, ...], facts: RunFacts, used: Sequence[CardUse] = ()) -> str:
    """The verdict in one sentence: how idle the GPUs or else the learner is, and what they wait
    for; `used` is the run's use of each GPU."""
    if tie := tied(ranked):
        alone = tuple(replace(finding, interval=None) for finding in ranked)
        return f"a tie: {tie_words(tie)}; {headline(alone, facts, used)}"
    first, idle = ranked[0], 1.0 - facts.learner
    busy = cards.computing(used)
    if facts.updates and busy is not None:
        waited = cards.waits(_host(facts, busy), busy)
        return cards.headline(sum(card.works for card in used), busy, waited, lambda phase: "")
    words = first.evidence[0]
    if first.id == "compute-bound" and first.phases == ("learn",):
        words = f"learning takes {percent(facts.phases['learn'])} of the time"
    elif len(first.phases) == 1 and first.phases[0] in _AWAITED:
        (phase,) = first.phases
        awaited = collecting.waits_for(facts) if phase == "wait" else _AWAITED[phase]
        words = f"{percent(first.share)} of the time goes into {awaited}"
        if first.share <= idle + 0.02 and facts.updates:
            words = (
                f"the learner is idle {percent(idle)} of the time; {percent(first.share)} of the "
                f"time goes into {awaited}"
            )
    most = max((facts.phases[phase] for phase in first.phases), default=1.0)
    larger = {phase: share for phase, share in facts.phases.items() if share > most + WORTH_SAYING}
    if larger:
        phase = max(larger, key=lambda name: larger[name])
        words += f"; {_LARGER.get(phase, phase)} takes more: {percent(larger[phase])} of the time"
    return words if facts.updates else f"nothing was learned yet: {words}"


def _host(facts: RunFacts, busy: float) -> dict[str, float]:
    """Return shares of the time that the host spends, by phase, without waiting for its GPU.

    Spans of acting and learning contain the GPU's work, which is waited for inside of them.
    """
    place = facts.placement
    on_gpu = {"learn": place.learn, "fused": place.learn, "act": place.act}
    spans = [name for name, devices in on_gpu.items() if any(d.kind == "gpu" for d in devices)]
    total = sum(facts.phases[name] for name in spans)
    rest = 1.0 - min(busy / total, 1.0) if total else 1.0
    host = {name: share * (rest if name in spans else 1.0) for name, share in facts.phases.items()}
    for span, phase in (("fused", "learn"), ("publish", "transfer")):
        host[phase] += host.pop(span, 0.0)
    return host


def bottleneck(phases: dict[str, float]) -> tuple[str, float]:
    """The largest cause of the last seconds and its share, for the live display."""
    named = {phase: share for phase, share in phases.items() if phase in _SHOWN and share > 0.0}
    largest = max(named, key=lambda phase: named[phase], default=None)
    return (_SHOWN[largest], named[largest]) if largest else ("", 0.0)


_SHOWN = CAUSE_OF | {"eval": "evaluating", "transfer": "transfer-bound", "learn": "learning",
                       "fused": "one program"}  # fmt: skip

_AWAITED = {
    "env": "waiting for env.step", "act": "choosing actions", "replay": "gathering batches",
    "ipc": "moving data between processes", "input": "waiting for examples",
    "io": "writing logs and checkpoints", "compile": "compiling again",
    "wait": "waiting",
}  # fmt: skip
"""The phases in which the learner waits."""

_LARGER = {
    "learn": "learning", "fused": "the one program", "publish": "handing parameters to acting",
    "other": "code outside the measured parts",
}  # fmt: skip
"""Phases that may take more than the one that a verdict names, where nothing shortens them."""


def _named(found: list[Finding], facts: RunFacts) -> Finding | None:
    """Return the finding that the verdict names: the one with the largest share of the time that a
    remedy can shorten; or learning itself, if that takes most of the time."""

    def weight(finding: Finding) -> float:
        """Return the largest part of a phase that it explains."""
        return max(min(facts.phases[phase], finding.share) for phase in finding.phases)

    attributed = [finding for finding in found if finding.phases]
    work = [finding for finding in attributed if finding.id == "compute-bound"]
    remedied = [
        finding for finding in attributed if finding.id != "compute-bound"
        and (finding.id not in DEVICES or finding.setting)
    ]  # fmt: skip
    for phase in ("learn", "fused"):
        if facts.phases[phase] >= LEARNING_HOLDS:
            remedied = [finding for finding in (*remedied, *work) if phase in finding.phases]
    if remedied:
        return max(remedied, key=lambda finding: (weight(finding), finding.share))
    return work[0] if work else None


def _unattributed(facts: RunFacts) -> Finding:
    largest = max(facts.phases, key=lambda phase: facts.phases[phase])
    share = facts.phases[largest]
    evidence = (
        f"most of the time, {percent(share)}, is spent outside the measured parts of an iteration, "
        "such as in callbacks",
    )
    words = "Use longer trajectories (--n-steps), so that each iteration does more."
    return Finding("launch-bound", share, evidence, words, phases=(largest,))
