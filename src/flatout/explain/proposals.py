"""Possible remedies, their measured gains, and findings that propose the best one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from flatout.config.placement import parse_or_auto
from flatout.config.workers import with_workers
from flatout.explain.facts import RunFacts
from flatout.explain.settings import Changes, flags, possible
from flatout.planning.predict import Prediction, predict
from flatout.planning.stages import Stages, learning_of
from flatout.spans import phase_words
from flatout_explain.diagnosis import Finding, MeasuredGain
from flatout_explain.report import percent

LEAST_GAIN = 1.02
"""A proposal that was measured to gain less than this is not made."""

BOTH = "planning measured both placements here"
STAGES = "computed from stages that planning measured here"

OUTSIDE = ("input", "io", "eval", "compile")
"""Phases that planning does not measure, and that no placement changes."""


@dataclass(frozen=True)
class Proposal:
    """A possible remedy."""

    words: str  # what to change
    changes: Changes  # to settings, if any
    handicap: float = 1.0  # its gain is divided by this in comparisons, for its side effects


@dataclass(frozen=True)
class Advice:
    """The answer of a rule: sentences of evidence, and what can be changed."""

    evidence: Sequence[str]
    otherwise: str  # what to change where no proposal can be made
    proposals: Iterable[Proposal] = ()  # the preferred one first
    share: float | None = None  # of the time, if it is not that of the rule's phases


def takes(facts: RunFacts, phase: str, share: float) -> str:
    """Return a sentence about the share of the time that a phase takes."""
    return f"{phase_words(phase, facts.updates)} takes {percent(share)} of the time"


def propose(
    cause: str, phases: tuple[str, ...], share: float, advice: Advice, facts: RunFacts
) -> Finding:
    """Return a finding with the proposal that was measured to gain most or, without measurements,
    the first one that the run would accept."""
    best: tuple[float, Proposal | None, MeasuredGain | None] = -1.0, None, None
    for proposal in advice.proposals if facts.updates else ():  # else learning's time is unknown
        if not possible(facts, proposal.changes):
            continue
        gain = measured_gain(facts, proposal.changes)
        rank = 0.0 if gain is None else gain.gain / proposal.handicap
        if rank > best[0] and (gain is None or gain.gain >= LEAST_GAIN):
            best = rank, proposal, gain
    _, proposal, gain = best
    return Finding(
        cause, share if advice.share is None else advice.share, tuple(advice.evidence),
        advice.otherwise if proposal is None else proposal.words, phases=phases, gain=gain,
        setting=() if proposal is None else flags(proposal.changes),
    )  # fmt: skip


def measured_gain(facts: RunFacts, changes: Changes) -> MeasuredGain | None:
    """Return the gain of another placement, from what planning measured of this run on this
    machine; None if it did not, or if other settings change too.

    Phases that planning does not run keep their time.
    """
    if facts.plan is not None and changes == {"spare_envs": "all"}:
        return _gain_of_spares(facts, facts.plan.stages)
    if facts.plan is None or not changes.keys() <= {"placement", "env_backend"}:
        return None
    placement = parse_or_auto(str(changes.get("placement", "auto")))
    if placement is None:
        return None
    place, other = (
        with_workers(each, facts.envs, facts.cores) for each in (facts.placement, placement)
    )
    found = {p.placement: p for p in (*facts.plan.lagged, *facts.plan.predictions)}
    if place not in found or other not in found:
        return None
    both = all(found[each].measured is not None for each in (place, other))

    def speeds(p: Prediction) -> tuple[float, float, float]:
        """Return the lowest, expected and highest speed, found the same way for both placements."""
        return (
            (p.low, p.best_known, p.high)
            if both or p.measured is None
            else (p.rate, p.rate, p.rate)
        )

    def gain(before: float, after: float) -> float:
        return _whole(facts, before / after)

    (low, now, high), (least, then, most) = speeds(found[place]), speeds(found[other])
    how = BOTH if both else STAGES
    return MeasuredGain(gain(now, then), gain(high, least), gain(low, most), how)


def _gain_of_spares(facts: RunFacts, stages: Stages) -> MeasuredGain | None:
    """Return what resets in the background gain; None if no reset was timed."""
    place = with_workers(facts.placement, facts.envs, facts.cores)
    if not stages.resets.mean_s or place.steps_on_device or learning_of(place) not in stages.learn:
        return None
    now, then = (
        predict(replace(stages, resets=replace(stages.resets, spares=spares)), place)
        for spares in (False, True)
    )
    wide = then.high / then.rate
    ratio = now.rate / then.rate
    low, high = (_whole(facts, ratio * width) for width in (wide, 1.0 / wide))
    return MeasuredGain(_whole(facts, ratio), low, high, STAGES)


def _whole(facts: RunFacts, ratio: float) -> float:
    """Return the gain of the whole run, of which planning's part then takes `ratio` times as
    long."""
    share = 1.0 - sum(facts.phases[phase] for phase in OUTSIDE)
    return 1.0 / max(1.0 - share + share * ratio, 1e-3)
