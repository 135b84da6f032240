"""Possible remedies, and findings that propose the best one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flatout.explain.diagnosis import Finding
from flatout.explain.own.settings import Changes, flags, possible
from flatout.explain.report import gain_word, percent
from flatout.planning.facts import RunFacts
from flatout.planning.gains import Gain

WORTH_SAYING = 0.05  # minimum share of the time for a finding


@dataclass(frozen=True)
class Try:
    """A possible remedy."""

    gain: Gain  # predicted
    words: str  # what to change
    changes: Changes  # to settings, if any
    handicap: float = 1.0  # its gain is divided by this in comparisons, for its side effects


def predicted(
    cause: str, share: float, evidence: Sequence[str], otherwise: str,
    facts: RunFacts, tries: Sequence[Try] = (),
) -> Finding:  # fmt: skip
    """A finding with the proposal that gains most, divided by its handicap; `otherwise` is the
    advice if none is predicted to gain."""
    valid = [
        proposal
        for proposal in tries
        if not proposal.changes or possible(facts.settings, proposal.changes, facts.cores)
    ]
    if not facts.updates:  # how long learning takes is unknown, and so is what the run would gain
        valid = []
    best = max(valid, key=lambda t: (t.gain.gain / t.handicap, bool(t.changes)), default=None)
    if best is None or best.gain.gain < 1.02:
        return Finding(cause, share, tuple(evidence), otherwise)
    gain = best.gain
    rest = f"{percent(1.0 / gain.gain)} of the time remains for the same work"
    return Finding(
        cause, share, (*evidence, f"{gain_word(gain.kind)}: {rest}"), best.words,
        gain.gain, gain.low, gain.high, flags(best.changes), gain.kind,
    )  # fmt: skip


def time_words(seconds: float) -> str:
    """A short time in words."""
    if seconds >= 1.0:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"
