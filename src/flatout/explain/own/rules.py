"""The rules for Flatout's own runs: numbers in, ranked findings out. Pure.

First the phase that holds the rest up, then the mechanism inside learning, then devices. Each rule
names what remains after its remedy, and proposes only settings that the run could be given.
"""

from __future__ import annotations

from collections.abc import Callable

from flatout.explain.causes import DEVICES, HEALTHY
from flatout.explain.diagnosis import Finding
from flatout.explain.own import beside, collecting, learning
from flatout.explain.own.proposals import WORTHWHILE
from flatout.explain.report import percent
from flatout.planning.facts import RunFacts
from flatout.planning.predict import Costs, costs

LEARNING_HOLDS = 0.5
"""From this share on learning itself is what the run waits for."""

RULES: tuple[Callable[[RunFacts, Costs], Finding | None], ...] = (
    collecting.env, collecting.act, collecting.ipc, collecting.lockstep,
    learning.replay, learning.images, learning.transfer, learning.turns, learning.arithmetic,
    beside.writing, beside.evaluation, beside.compiling,
    beside.oversubscribed, beside.gpu_unused, beside.memory,
)  # fmt: skip


def findings(facts: RunFacts) -> tuple[Finding, ...]:
    """All findings, best first; at least one."""
    found: list[Finding] = []
    cost = costs(facts)
    for rule in RULES:
        finding = rule(facts, cost)
        if finding is not None:
            found.append(finding)
    if not found:
        found.append(_nothing(facts))
    return tuple(sorted(found, key=lambda finding: -_rank(finding, facts)))


def verdict(found: tuple[Finding, ...]) -> str:
    """The first finding's id; ``healthy`` where that is the arithmetic of learning."""
    return HEALTHY if found[0].id == "compute-bound" else found[0].id


def headline(found: tuple[Finding, ...], facts: RunFacts) -> str:
    """The verdict in one sentence: whether the learner has something to do, and what it awaits."""
    first, idle = found[0], 1.0 - facts.learner
    if first.id == "compute-bound":
        return f"the learner is busy {percent(facts.learner)} of the time"
    phase = next((name for name, cause in _OF_PHASE.items() if cause == first.id), "")
    if phase not in _AWAITED or first.share != facts.phases[phase]:
        return first.evidence[0]
    if first.share <= idle + 0.02:
        points = f"{100 * first.share:.0f} points of it"
        return f"learner idle {percent(idle)} of the time, {points} {_AWAITED[phase]}"
    return f"{percent(first.share)} of the time goes into {_AWAITED[phase]}"


def bottleneck(phases: dict[str, float]) -> tuple[str, float]:
    """The cause and the share of what took most of the last seconds, for the live display."""
    named = {phase: share for phase, share in phases.items() if phase in _OF_PHASE}
    if not named or max(named.values()) <= 0.0:
        return "", 0.0
    largest = max(named, key=lambda phase: named[phase])
    return _OF_PHASE[largest], named[largest]


_OF_PHASE = {
    "env": "env-bound", "act": "acting-bound", "replay": "replay-bound", "ipc": "ipc-bound",
    "input": "input-bound", "wait": "waiting", "io": "io-bound", "eval": "evaluating",
    "compile": "compile-bound", "transfer": "transfer-bound", "learn": "learning",
}  # fmt: skip

_AWAITED = {
    "env": "waiting for env.step", "act": "choosing actions", "replay": "gathering batches",
    "ipc": "moving data between processes", "input": "waiting for images",
    "wait": "waiting for the slowest actor process",
    "io": "writing logs and checkpoints", "compile": "compiling again",
}  # fmt: skip
"""What the learner cannot begin before."""


def _rank(finding: Finding, facts: RunFacts) -> float:
    """What holds the rest up comes first; what is only a symptom of something else, later."""
    if finding.id == "compute-bound":
        holds = facts.phases["learn"] >= LEARNING_HOLDS
        return 2.0 + finding.share if holds else finding.share / 2
    if finding.id in DEVICES:
        return 3.0 + finding.share if finding.gain > WORTHWHILE else -1.0
    if finding.id == "oversubscribed":
        return finding.share / 2
    return finding.share * finding.gain


def _nothing(facts: RunFacts) -> Finding:
    largest = max(facts.phases, key=lambda phase: facts.phases[phase])
    share = facts.phases[largest]
    evidence = (f"most of the time, {percent(share)}, lies outside of every named stretch",)
    words = "Longer trajectories, so that each iteration does more."
    return Finding("launch-bound", share, evidence, words)
