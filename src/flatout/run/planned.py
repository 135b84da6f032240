"""The answer to a question of planning: measure the stages, predict, verify the best few."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from flatout.config.placement import Placement, parse
from flatout.errors import FlatoutError
from flatout.planning.answer import Answer, Question
from flatout.planning.found import Found, conclude, predictions
from flatout.planning.plan import larger
from flatout.planning.predict import Prediction
from flatout.run.probe import Probe
from flatout.run.probe_process import Report, unheard
from flatout.types import UserCode

FINALISTS = 3
"""Number of placements that are run, not only predicted."""

VERIFYING = 0.25
"""Share of the time that is always left for these runs."""


def answer(question: Question, code: UserCode, report: Report = unheard) -> Answer:
    """Measure the stages, predict every placement, and verify the best few.

    Args:
        report: receives each stage before it begins, and the result so far.

    Raises:
        UsageError: there is only one environment object, which a probe may not step.
        FlatoutError: the environment or the algorithm fails.
    """
    began = time.perf_counter()
    with ExitStack() as stack:
        report("making the environments and the networks")
        probe = Probe(question, code, stack, lambda stage: report(stage, so_far()))

        def found() -> Found | None:
            """Return the measurements so far; None if no placement can be chosen from them yet."""
            memory = probe.memory()
            if probe.stages is None or all(parse(t).lag and not question.lag for t in memory):
                return None
            if question.base.steps_on_device and str(probe.parts.base) not in memory:
                return None  # another would be chosen only because this one was not measured
            rates = {text: (rate.rate, rate.spread) for text, rate in probe.rates.items()}
            return Found(
                probe.stages, tuple(sorted(probe.known)), memory, rates, tuple(probe.notes),
                time.perf_counter() - began,
            )  # fmt: skip

        def so_far() -> Any:
            measurements = found()
            return None if measurements is None else asdict(measurements)

        probe.measure(0.5 * question.budget_s)
        measured = _needed(found(), probe)
        predicted = predictions(measured)
        left = question.budget_s - (time.perf_counter() - began)
        if measured.stages.rollout:  # compiling has taken some
            left = max(left, VERIFYING * question.budget_s)
        candidates = [p for p in predicted if question.lag or not p.placement.lag]
        probe.verify(_finalists(candidates, question.base), left)
        more = None  # a population's members are its environments
        if not question.config.hyper.only_serial:
            allowed = probe.parts.allowed(question.lag)
            more = larger(measured.stages, question.base, allowed, measured.known)
        return conclude(question, _needed(found(), probe), predicted, more)


def as_json(question: Question, code: UserCode, report: Report) -> dict[str, Any]:
    """Return `answer` as JSON values, for another process."""
    return answer(question, code, report).as_json()


def _needed(found: Found | None, probe: Probe) -> Found:
    if found is None:
        raise FlatoutError("; ".join(probe.notes) or f"{probe.parts.base} was not measured")
    return found


def _finalists(predicted: Sequence[Prediction], base: Placement) -> list[Prediction]:
    """Return the placements with the best predictions and the rule's own, the best first. Of those
    on a cluster only the best one is among them: a process is connected to Ray once."""
    order = sorted(predicted, key=lambda p: -p.rate)
    there = [p for p in order if p.placement.on_cluster]
    order = [p for p in order if p not in there[1:]]
    best = order[:FINALISTS]
    return best + [p for p in order[FINALISTS:] if p.placement == base]
