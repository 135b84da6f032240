"""The rules for Flatout's runs: numbers in, ranked findings out. Pure.

First the phase that is the bottleneck, then the mechanism inside learning, then devices. Each rule
proposes only valid settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from flatout.explain import collecting, learning, overheads
from flatout.explain.collecting import LEARN, LOCKSTEP
from flatout.explain.facts import RunFacts
from flatout.explain.proposals import Advice, propose
from flatout.spans import phase_words
from flatout_explain import cards
from flatout_explain.cards import CardUse
from flatout_explain.causes import CAUSE_OF, DEVICES, OVERLAPPING
from flatout_explain.diagnosis import Finding
from flatout_explain.ranking import LEAST_SHARE, LOST, MOSTLY, ordered
from flatout_explain.report import percent, tie_words

LEARNING_HOLDS = 0.5  # from this share on, learning itself is the bottleneck

UNNAMED = ("other", "publish")
"""Phases that the live display does not name."""

Rule = Callable[[RunFacts, float], Advice | None]

RULES: tuple[tuple[str, Rule, tuple[str, ...]], ...] = (
    ("env-bound", collecting.env, ("env",)), ("acting-bound", collecting.act, ("act",)),
    ("ipc-bound", collecting.ipc, ("ipc",)), ("waiting", collecting.lockstep, ("wait",)),
    ("replay-bound", learning.replay, ("replay",)), ("input-bound", learning.images, ("input",)),
    ("compute-bound", learning.fused, ("fused",)),
    ("transfer-bound", learning.transfer, ("transfer", "publish")),
    ("launch-bound", learning.turns, (*LEARN, "publish", "other")),
    ("launch-bound", learning.tiny_updates, ("learn",)),
    ("compute-bound", learning.arithmetic, ("learn",)), ("io-bound", overheads.writing, ("io",)),
    ("eval-bound", overheads.evaluation, ("eval",)),
    ("compile-bound", overheads.compiling, ("compile",)),
    ("oversubscribed", overheads.oversubscribed, ()),
    ("throttled", overheads.throttled, ()), ("gpu-unused", overheads.gpu_unused, ("learn",)),
)  # fmt: skip
"""Causes, their rules, and the phases whose share of the time a rule receives. It is skipped if
that is small."""

WEIGH = {overheads.oversubscribed, overheads.throttled, overheads.gpu_unused}
"""Rules that find out themselves how much of the time they concern."""


def findings(facts: RunFacts, used: Sequence[CardUse] = ()) -> tuple[Finding, ...]:
    """Return all findings, at least one: first the one that the verdict names, then the others in
    the order of `ordered`. `used` is the run's use of each GPU."""
    results: list[Finding] = []
    for cause, rule, phases in RULES:
        share = sum(facts.phases[phase] for phase in phases)
        advice = rule(facts, share) if rule in WEIGH or share >= LEAST_SHARE else None
        if advice is not None:
            results.append(propose(cause, phases, share, advice, facts))
    named = _named(results, facts) or _unattributed(facts)
    if (memory := cards.memory(used)) is not None:
        words = "Limit this run's memory with memory= in --placement, or use another GPU."
        results.append(replace(memory, remedy=words))
    others = ordered(finding for finding in results if finding is not named)
    least = max(MOSTLY * named.share, LOST)
    crowded = [one for one in others if one.id in OVERLAPPING and one.share >= least]
    if crowded and named.id == "compute-bound":  # it is no healthy run
        return *crowded, named, *(finding for finding in others if finding not in crowded)
    return named, *others


def headline(ranked: Sequence[Finding], facts: RunFacts, used: Sequence[CardUse] = ()) -> str:
    """Return the verdict in one sentence: how idle the GPUs or else the learner is, and what they
    wait for; `used` is the run's use of each GPU."""
    words, busy = _summary(ranked[0], facts), cards.computing(used)
    if facts.updates and busy is not None:
        waited = cards.waits(_host(facts, busy), busy)
        words = cards.headline(sum(card.works for card in used), busy, waited, lambda phase: "")
    return "; ".join(filter(None, (tie_words(ranked), words)))


def _summary(first: Finding, facts: RunFacts) -> str:
    """Summarise the first finding, how idle the learner is, and what takes more time."""
    words, idle = first.evidence[0], 1.0 - facts.learner
    if first.id == "compute-bound" and first.phases == ("learn",):
        words = f"learning takes {percent(facts.phases['learn'])} of the time"
    elif len(first.phases) == 1 and first.phases[0] in CAUSE_OF and first.id != "eval-bound":
        (phase,) = first.phases
        doing = LOCKSTEP if phase == "wait" else phase_words(phase, facts.updates)
        words = f"{percent(first.share)} of the time goes into {doing}"
        if first.share <= idle + 0.02 and facts.updates:
            words = f"the learner is idle {percent(idle)} of the time; {words}"
    most = max((facts.phases[phase] for phase in first.phases), default=1.0)
    phase = max(facts.phases, key=lambda name: facts.phases[name])
    if facts.phases[phase] > most + LEAST_SHARE:
        doing = "learning" if phase == "learn" else phase_words(phase, facts.updates)
        words += f"; {doing} takes more: {percent(facts.phases[phase])} of the time"
    return words if facts.updates else f"nothing has been learned yet: {words}"


def _host(facts: RunFacts, busy: float) -> dict[str, float]:
    """Return shares of the time that the host spends, by phase, without waiting for its GPU.

    Spans of acting and learning contain the GPU's work, which is waited for inside of them.
    """
    place = facts.placement
    on_gpu = {"learn": place.learn, "fused": place.learn, "act": place.act}
    spans = [name for name, devices in on_gpu.items() if any(d.is_gpu for d in devices)]
    total = sum(facts.phases[name] for name in spans)
    rest = 1.0 - min(busy / total, 1.0) if total else 1.0
    host = {name: share * (rest if name in spans else 1.0) for name, share in facts.phases.items()}
    for span, phase in (("fused", "learn"), ("publish", "transfer")):
        host[phase] += host.pop(span, 0.0)
    return host


def bottleneck(phases: dict[str, float]) -> tuple[str, float]:
    """Return the largest cause of the last seconds and its share, for the live display."""
    named = {phase: share for phase, share in phases.items() if phase not in UNNAMED and share}
    largest = max(named, key=lambda phase: named[phase], default="")
    words = CAUSE_OF.get(largest) or (phase_words(largest, 1) if largest else "")
    return words, named.get(largest, 0.0)


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
