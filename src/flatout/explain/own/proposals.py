"""Remedies that may be proposed, and findings made of the best of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.explain.diagnosis import Finding
from flatout.explain.own.settings import Changes, flags, possible
from flatout.explain.report import gain_word, percent
from flatout.planning.facts import RunFacts
from flatout.planning.predict import Gain

WORTH_SAYING = 0.05
"""Phases below this share of the time make no finding."""

WORTHWHILE = 1.1
"""Less gain than this is not worth a change of its own."""


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


def best(tries: list[Try], facts: RunFacts) -> Try | None:
    """The possible proposal with the largest gain, handicaps counted."""
    able = [
        one
        for one in tries
        if not one.changes or possible(facts.settings, one.changes, facts.cores)
    ]
    if not able:
        return None
    return max(able, key=lambda one: (one.gain.gain / one.handicap, bool(one.changes)))


def predicted(
    cause: str, share: float, evidence: list[str], tried: Try | None, otherwise: str
) -> Finding:
    """A finding with its remedy; what is predicted to gain nothing is no setting to try.

    Args:
        cause, share, evidence: the finding's.
        tried: the best proposal, or None.
        otherwise: what to say where nothing can be set that helps.
    """
    if tried is None or tried.gain.gain < 1.02:
        return Finding(cause, share, tuple(evidence), otherwise)
    gain = tried.gain
    word = gain_word(gain.kind)
    said = f"{word}: {percent(1.0 / gain.gain)} of the time remains for the same work"
    return Finding(
        cause, share, (*evidence, said), tried.words, gain.gain, gain.low, gain.high,
        flags(tried.changes), gain.kind,
    )  # fmt: skip


def time_words(seconds: float) -> str:
    """A short time in words."""
    if seconds >= 1.0:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"
