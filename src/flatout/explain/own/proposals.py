"""Possible remedies, their measured gains, and findings that propose the best one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flatout.config.placement import parse
from flatout.config.workers import with_workers
from flatout.explain.diagnosis import Finding, MeasuredGain
from flatout.explain.own.costs import OUTSIDE
from flatout.explain.own.settings import Changes, flags, possible
from flatout.planning.facts import RunFacts
from flatout.planning.predict import Prediction

WORTH_SAYING = 0.05  # minimum share of the time for a finding

LEAST_GAIN = 1.02
"""A proposal that was measured to gain less than this is not made."""

BOTH = "planning measured both placements here"
STAGES = "computed from stages that planning measured here"


@dataclass(frozen=True)
class Proposal:
    """A possible remedy."""

    words: str  # what to change
    changes: Changes  # to settings, if any
    handicap: float = 1.0  # its gain is divided by this in comparisons, for its side effects


def propose(
    cause: str, share: float, evidence: Sequence[str], otherwise: str,
    facts: RunFacts, proposals: Sequence[Proposal] = (),
) -> Finding:  # fmt: skip
    """A finding with the proposal that was measured to gain most or, without measurements, the
    first one that the run would accept; `otherwise` is the advice if there is none."""
    best: tuple[float, Proposal, MeasuredGain | None] | None = None
    for proposal in proposals if facts.updates else ():  # what learning takes is unknown before
        if not possible(facts.settings, proposal.changes, facts.cores):
            continue
        gain = measured_gain(facts, proposal.changes)
        if gain is not None and gain.gain < LEAST_GAIN:
            continue
        rank = 0.0 if gain is None else gain.gain / proposal.handicap
        if best is None or rank > best[0]:
            best = rank, proposal, gain
    if best is None:
        return Finding(cause, share, tuple(evidence), otherwise)
    _, proposal, gain = best
    return Finding(
        cause, share, tuple(evidence), proposal.words, setting=flags(proposal.changes), gain=gain
    )


def measured_gain(facts: RunFacts, changes: Changes) -> MeasuredGain | None:
    """Return the gain of another placement, from what planning measured of this run on this
    machine; None if it did not, or if other settings change too.

    Phases that planning does not run keep their time.
    """
    if facts.plan is None or not changes.keys() <= {"placement", "env_backend"}:
        return None
    placement = str(changes.get("placement", "auto"))
    if placement == "auto":
        return None
    place, other = (
        with_workers(each, facts.envs, facts.cores) for each in (facts.placement, parse(placement))
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
        return 1.0 / max(1.0 - share + share * before / after, 1e-3)

    share = 1.0 - sum(facts.phases[phase] for phase in OUTSIDE)
    (low, now, high), (least, then, most) = speeds(found[place]), speeds(found[other])
    how = BOTH if both else STAGES
    return MeasuredGain(gain(now, then), gain(high, least), gain(low, most), how)


def time_words(seconds: float) -> str:
    """A short time in words."""
    if seconds >= 1.0:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"
