"""Questions to planning and its answers: plain data that can be sent as JSON. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import msgspec

from flatout.config.placement import CPU, DeviceName, Placement, parse
from flatout.config.schema import TrainConfig
from flatout.errors import UsageError
from flatout.planning.plan import choose
from flatout.planning.predict import Prediction
from flatout.planning.stages import Count, Seconds, Stages
from flatout_explain.documents import convert

LEFT_OUT = "are left out"
"""Words of a note that something was not measured which could have been chosen."""


@dataclass(frozen=True)
class Question:
    """A run that is to be planned.

    Attributes:
        config: the run's settings.
        base: the rule's placement, which the search starts from.
        budget_s: time to spend, from the beginning of the first probe.
        lag: acting with older parameters is allowed.
        devices: where acting and learning may happen.
        length: mean steps of the run's latest episodes; 0 if that is unknown.
    """

    config: TrainConfig
    base: Placement
    budget_s: float
    lag: bool = False
    devices: tuple[DeviceName, ...] = (CPU,)
    length: float = 0.0


@dataclass(frozen=True)
class Answer:
    """The result of planning.

    Attributes:
        stages: as measured.
        known: ways to collect that were themselves run.
        predictions: the best first.
        lagged: those that act with older parameters, where that was not allowed.
        spent_s: the time that it took.
        notes: sentences about what could not be measured.
        larger: the fastest with more environments, and how many.
        base: the rule's placement, from which the search has started.
    """

    stages: Stages
    known: tuple[str, ...]
    predictions: list[Prediction]
    lagged: list[Prediction]
    spent_s: float
    notes: tuple[str, ...] = ()
    larger: tuple[int, Prediction] | None = None
    base: Placement = field(default_factory=Placement)

    @property
    def complete(self) -> bool:
        """Whether all was measured that could have been chosen."""
        return not any(LEFT_OUT in note for note in self.notes)

    @property
    def chosen(self) -> Prediction:
        """The placement to take."""
        return choose(self.predictions)

    def as_json(self) -> dict[str, Any]:
        """The values for a file."""
        return {
            "stages": asdict(self.stages),
            "known": list(self.known),
            "predictions": [_row(p) for p in self.predictions],
            "lagged": [_row(p) for p in self.lagged],
            "spent_s": self.spent_s,
            "notes": list(self.notes),
            "larger": self.larger and [self.larger[0], _row(self.larger[1])],
            "base": str(self.base),
        }

    @staticmethod
    def from_json(values: Any) -> Answer:
        """The inverse of `as_json`.

        Raises:
            ValueError: it is no such object.
        """
        saved = convert(values, _Saved)
        more = saved.larger
        return Answer(
            saved.stages, saved.known, [row.prediction() for row in saved.predictions],
            [row.prediction() for row in saved.lagged], saved.spent_s, saved.notes,
            None if more is None else (more[0], more[1].prediction()), _placement(saved.base),
        )  # fmt: skip

    def words(self) -> str:
        """Return a line about what was measured and chosen, and about other placements."""
        chosen = self.chosen
        rate = _rate(chosen)
        others = [p for p in self.predictions if p.placement != chosen.placement]
        best = max(others, key=lambda p: p.best_known, default=None)
        text = f"{chosen.placement} ({rate}"
        if best is not None:
            text += f"; next best: {best.placement}, {_rate(best)}"
        text += ")"
        stages = self.stages
        if stages.running is not None:
            text += f"; of {stages.cores} cores {stages.at_once:.1f} ran at once for busy processes"
        more = [p for p in self.lagged if p.rate > 1.05 * chosen.best_known]
        if more:
            lagged = max(more, key=lambda p: p.rate)
            text += (
                f"; not allowed and faster: {lagged.placement}, {lagged.rate:,.0f} steps/s "
                "(--allow-lag: acting is then a version behind)"
            )
        if self.larger is not None and self.larger[1].rate > 1.05 * chosen.best_known:
            envs, batch = self.larger
            text += (
                f"; not allowed and faster: --envs {envs} with {batch.placement}, "
                f"{batch.rate:,.0f} steps/s (other batches: what is learned changes)"
            )
        return text


def _rate(prediction: Prediction) -> str:
    if prediction.measured is not None:
        return f"{prediction.measured:,.0f} steps/s measured"
    return f"{prediction.rate:,.0f} steps/s predicted"


def _row(prediction: Prediction) -> dict[str, Any]:
    error = None
    if prediction.measured is not None:
        error = prediction.rate / prediction.measured - 1.0
    return asdict(prediction) | {
        "placement": str(prediction.placement), "kind": prediction.placement.collects,
        "error": error,
    }  # fmt: skip


Rate = Annotated[float, msgspec.Meta(gt=0.0, lt=1e12)]


class _Row(msgspec.Struct):
    """A prediction as `_row` writes it."""

    placement: str
    rate: Rate
    low: Rate
    high: Rate
    waits: dict[str, float]
    measured: Rate | None
    memory: dict[str, float]

    def prediction(self) -> Prediction:
        return Prediction(
            _placement(self.placement), self.rate, self.low, self.high, self.waits, self.measured,
            self.memory,
        )  # fmt: skip


class _Saved(msgspec.Struct):
    """An answer as `Answer.as_json` writes it."""

    stages: Stages
    known: tuple[str, ...]
    predictions: Annotated[list[_Row], msgspec.Meta(min_length=1)]
    lagged: list[_Row]
    spent_s: Seconds
    notes: tuple[str, ...]
    larger: tuple[Count, _Row] | None
    base: str


def _placement(text: str) -> Placement:
    """Parse a document's placement; raise `ValueError` if it is none."""
    try:
        return parse(text)
    except UsageError as error:
        raise ValueError(str(error)) from error
