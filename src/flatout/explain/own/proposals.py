"""Remedies that may be proposed, and findings made of the best of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flatout.explain.diagnosis import Finding
from flatout.explain.own.settings import Changes, flags, possible
from flatout.explain.report import gain_word, percent
from flatout.planning.facts import RunFacts
from flatout.planning.predict import Gain

WORTH_SAYING = 0.05
"""Phases below this share of the time make no finding."""


@dataclass(frozen=True)
class Try:
    """A remedy that may be proposed.

    Attributes:
        gain: predicted.
        words: what to change.
        changes: the settings, where it is one.
        handicap: how much more than others it must gain, for what else it changes.
    """

    gain: Gain
    words: str
    changes: Changes
    handicap: float = 1.0


def predicted(
    cause: str, share: float, evidence: Sequence[str], otherwise: str,
    facts: RunFacts, tries: Sequence[Try] = (),
) -> Finding:  # fmt: skip
    """A finding with the possible proposal that gains most, handicaps counted.

    Args:
        cause, share, evidence: the finding's.
        otherwise: what to say where no setting is predicted to gain.
        facts: of the run.
        tries: the proposals.
    """
    able = [
        proposal
        for proposal in tries
        if not proposal.changes or possible(facts.settings, proposal.changes, facts.cores)
    ]
    tried = max(able, key=lambda t: (t.gain.gain / t.handicap, bool(t.changes)), default=None)
    if tried is None or tried.gain.gain < 1.02:
        return Finding(cause, share, tuple(evidence), otherwise)
    gain = tried.gain
    rest = f"{percent(1.0 / gain.gain)} of the time remains for the same work"
    return Finding(
        cause, share, (*evidence, f"{gain_word(gain.kind)}: {rest}"), tried.words,
        gain.gain, gain.low, gain.high, flags(tried.changes), gain.kind,
    )  # fmt: skip


def time_words(seconds: float) -> str:
    """A short time in words."""
    if seconds >= 1.0:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"
