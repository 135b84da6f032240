"""The answer to a question of planning: measure the stages, predict, verify the best few."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from flatout.config.placement import Placement
from flatout.errors import FlatoutError
from flatout.planning.answer import Answer, Question
from flatout.planning.measure import Rate
from flatout.planning.plan import candidates, kind, larger, ranked
from flatout.planning.predict import Prediction, predict
from flatout.run.probe import Probe
from flatout.types import UserCode

FINALISTS = 3
"""Placements that are run for real."""

VERIFYING = 0.25
"""Share of the time that they may always take."""

VERIFIED = 0.10
"""Least relative half-width of what a short run tells of a long one, which also logs and saves."""


def answer(question: Question, code: UserCode) -> Answer:
    """Measure, predict, and verify the best few.

    Raises:
        UsageError: there is only one environment object, which a probe may not step.
        FlatoutError: the environment or the algorithm fails.
    """
    began = time.perf_counter()
    with ExitStack() as stack:
        probe = Probe(question, code, stack)
        stages, known = question.stages, set(question.known)
        if stages is None:
            stages, known = probe.measure(0.5 * question.budget_s)
        allowed = probe.allowed(question.lag)

        def predicted(lag: bool) -> list[Prediction]:
            found = candidates(stages, question.base, replace(allowed, lag=lag))
            return [
                replace(predict(stages, p, known=kind(p) in known), memory=probe.memory(p))
                for p in found
            ]

        predictions = predicted(question.lag)
        if question.base.sampler == "device" and all(
            p.placement != question.base for p in predictions
        ):  # another would be chosen only because this one was not measured
            raise FlatoutError("; ".join(probe.notes) or f"{question.base} was not measured")
        left = question.budget_s - (time.perf_counter() - began)
        if stages.rollout:  # compiling has taken some
            left = max(left, VERIFYING * question.budget_s)
        measured = probe.verify(_finalists(predictions, question.base), stages, left)
        predictions = [_verified(p, measured.get(str(p.placement))) for p in predictions]
        lagged = [] if question.lag else [p for p in predicted(True) if p.placement.lag]
        more = None  # a population's members are its environments
        if not question.config.hyper.only_serial:
            more = larger(stages, question.base, allowed, tuple(known))
    spent_s = time.perf_counter() - began
    return Answer(
        stages, tuple(sorted(known)), ranked(predictions), ranked(lagged), spent_s,
        tuple(dict.fromkeys(probe.notes)), more,
    )  # fmt: skip


def as_json(question: Question, code: UserCode) -> dict[str, Any]:
    """`answer` as values that travel."""
    return answer(question, code).as_json()


def _finalists(predictions: Sequence[Prediction], base: Placement) -> list[Prediction]:
    """The best few and the rule's own, the best first."""
    order = sorted(predictions, key=lambda p: -p.rate)
    best = order[:FINALISTS]
    return best + [p for p in order[FINALISTS:] if p.placement == base]


def _verified(prediction: Prediction, rate: Rate | None) -> Prediction:
    if rate is None:
        return prediction
    wide = max(rate.spread, VERIFIED)
    measured = rate.rate
    return replace(
        prediction, measured=measured, low=measured / (1.0 + wide), high=measured * (1.0 + wide)
    )
