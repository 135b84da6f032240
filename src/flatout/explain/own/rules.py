"""The rules for Flatout's runs: numbers in, ranked findings out. Pure.

First the phase that is the bottleneck, then the mechanism inside learning, then devices. Each rule
names what remains after its remedy, and proposes only valid settings.
"""

from __future__ import annotations

from collections.abc import Callable

from flatout.explain.causes import CAUSE_OF, DEVICES, HEALTHY
from flatout.explain.diagnosis import Finding
from flatout.explain.own import beside, collecting, learning
from flatout.explain.own.proposals import WORTH_SAYING
from flatout.explain.report import WORTHWHILE, percent
from flatout.planning.facts import RunFacts
from flatout.planning.gains import Costs, costs

LEARNING_HOLDS = 0.5  # from this share on, learning itself is the bottleneck

Rule = Callable[[RunFacts, Costs, float], Finding | None]

RULES: tuple[tuple[tuple[str, ...], Rule], ...] = (
    (("env",), collecting.env), (("act",), collecting.act), (("ipc",), collecting.ipc),
    (("wait",), collecting.lockstep), (("replay",), learning.replay), (("input",), learning.images),
    (("fused",), learning.fused),
    (("transfer", "publish"), learning.transfer), ((), learning.turns), ((), learning.arithmetic),
    (("io",), beside.writing), (("eval",), beside.evaluation), (("compile",), beside.compiling),
    ((), beside.oversubscribed), ((), beside.gpu_unused), ((), beside.memory),
)  # fmt: skip
"""Rules and their phases: a rule receives their share, and is skipped if it is small."""


def findings(facts: RunFacts) -> tuple[Finding, ...]:
    """All findings, best first; at least one."""
    results: list[Finding] = []
    cost = costs(facts)
    for phases, rule in RULES:
        share = sum(facts.phases[phase] for phase in phases)
        finding = None if phases and share < WORTH_SAYING else rule(facts, cost, share)
        if finding is not None:
            results.append(finding)
    if not results:
        results.append(_unattributed(facts))
    return tuple(sorted(results, key=lambda finding: -_rank(finding, facts)))


def verdict(ranked: tuple[Finding, ...]) -> str:
    """The first finding's id, or ``healthy`` if that is ``compute-bound``."""
    return HEALTHY if ranked[0].id == "compute-bound" else ranked[0].id


def headline(ranked: tuple[Finding, ...], facts: RunFacts) -> str:
    """The verdict in one sentence: how idle the learner is, and what it waits for."""
    first, idle = ranked[0], 1.0 - facts.learner
    if facts.phases["fused"] >= LEARNING_HOLDS:
        return first.evidence[0]
    if first.id == "compute-bound":
        return f"the learner is busy {percent(facts.learner)} of the time"
    phase = next((phase for phase, cause in CAUSE_OF.items() if cause == first.id), None)
    if phase is None or first.share != facts.phases[phase]:
        return first.evidence[0]
    awaited = collecting.waits_for(facts) if phase == "wait" else _AWAITED[phase]
    if first.share <= idle + 0.02:
        points = f"{100 * first.share:.0f} points of it"
        return f"learner idle {percent(idle)} of the time, {points} {awaited}"
    return f"{percent(first.share)} of the time goes into {awaited}"


def bottleneck(phases: dict[str, float]) -> tuple[str, float]:
    """The largest cause of the last seconds and its share, for the live display."""
    named = {phase: share for phase, share in phases.items() if phase in _SHOWN and share > 0.0}
    largest = max(named, key=lambda phase: named[phase], default=None)
    return (_SHOWN[largest], named[largest]) if largest else ("", 0.0)


_SHOWN = CAUSE_OF | {"eval": "evaluating", "transfer": "transfer-bound", "learn": "learning",
                       "fused": "one program"}  # fmt: skip

_AWAITED = {
    "env": "waiting for env.step", "act": "choosing actions", "replay": "gathering batches",
    "ipc": "moving data between processes", "input": "waiting for images",
    "io": "writing logs and checkpoints", "compile": "compiling again",
}  # fmt: skip
"""What the learner waits for."""


def _rank(finding: Finding, facts: RunFacts) -> float:
    """Bottlenecks rank high, symptoms of other causes low."""
    if finding.id == "compute-bound":
        is_bottleneck = facts.phases["learn"] + facts.phases["fused"] >= LEARNING_HOLDS
        return 2.0 + finding.share if is_bottleneck else finding.share / 2
    if finding.id in DEVICES:
        return 3.0 + finding.share if finding.gain > WORTHWHILE else -1.0
    if finding.id == "oversubscribed":
        return finding.share / 2
    return finding.share * finding.gain


def _unattributed(facts: RunFacts) -> Finding:
    largest = max(facts.phases, key=lambda phase: facts.phases[phase])
    share = facts.phases[largest]
    evidence = (f"most of the time, {percent(share)}, lies outside of every span",)
    words = "Longer trajectories, so that each iteration does more."
    return Finding("launch-bound", share, evidence, words)
