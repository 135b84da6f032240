"""Measurements so far, and the answer that follows from them: plain data. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from flatout.config.placement import parse
from flatout.errors import FlatoutError
from flatout.planning.answer import Answer, Question
from flatout.planning.limits import refusal
from flatout.planning.plan import ranked
from flatout.planning.predict import Prediction, predict
from flatout.planning.stages import Seconds, Stages

VERIFIED = 0.10
"""Least relative half-width of what a short run tells of a long one, which also logs and saves."""


@dataclass(frozen=True)
class Found:
    """The measurements of one run so far.

    Attributes:
        stages: as far as they were measured.
        known: ways to collect that were themselves run.
        memory: every placement that can be chosen, as text, with its expected MiB by device; with
            those that act with older parameters.
        rates: of placements that were run for a short time: steps per second, and the relative
            half-width of the interval of their mean.
        notes: sentences about what could not be measured.
        spent_s: the time that it took.
    """

    stages: Stages
    known: tuple[str, ...]
    memory: Mapping[str, Mapping[str, float]]
    rates: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    notes: tuple[str, ...] = ()
    spent_s: Seconds = 0.0


def predictions(found: Found) -> list[Prediction]:
    """A prediction for each placement that can be chosen, in their order.

    Raises:
        UsageError: a placement's text is none.
    """
    made: list[Prediction] = []
    for text, memory in found.memory.items():
        placement = parse(text)
        prediction = predict(found.stages, placement, known=placement.collects in found.known)
        made.append(replace(prediction, memory=dict(memory)))
    return made


def conclude(
    question: Question, found: Found, predicted: Sequence[Prediction] | None = None,
    more: tuple[int, Prediction] | None = None,
) -> Answer:  # fmt: skip
    """The answer, from all that was measured.

    Args:
        predicted: `predictions`, where they were made already.
        more: the fastest with more environments, and how many.

    Raises:
        FlatoutError: nothing can be chosen.
    """
    made = predictions(found) if predicted is None else predicted
    texts = [str(one.placement) for one in made]
    made = [
        _verified(one, found.rates.get(text))
        for one, text in zip(made, texts, strict=True) if text in found.memory
    ]  # fmt: skip
    allowed = [one for one in made if question.lag or not one.placement.lag]
    if not allowed:
        raise FlatoutError("; ".join(found.notes) or "no placement fits this machine.")
    lagged = [] if question.lag else [one for one in made if one.placement.lag]
    notes, hosts = list(found.notes), found.stages.hosts
    if hosts is not None:
        notes += filter(None, [hosts.network.words(), refusal(found.stages, made)])
    return Answer(
        found.stages, tuple(sorted(found.known)), ranked(allowed), ranked(lagged), found.spent_s,
        tuple(dict.fromkeys(notes)), more, question.base,
    )  # fmt: skip


def _verified(prediction: Prediction, run: tuple[float, float] | None) -> Prediction:
    if run is None:
        return prediction
    measured, wide = run[0], max(run[1], VERIFIED)
    return replace(
        prediction, measured=measured, low=measured / (1.0 + wide), high=measured * (1.0 + wide)
    )
