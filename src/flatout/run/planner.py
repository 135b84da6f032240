"""Measuring placements in a child process: before a run, or while it begins."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from flatout.config.placement import Placement
from flatout.config.placement_checks import refuse_shards
from flatout.config.schema import TrainConfig
from flatout.errors import FlatoutError
from flatout.hardware.inventory import Hardware, resolve_placement
from flatout.output import say
from flatout.planning.answer import LEFT_OUT, Answer, Question
from flatout.planning.predict import Prediction
from flatout.run.auto import question, remember
from flatout.spans import Spans
from flatout.storage.span_records import PLAN
from flatout.types import NAMED, UserCode
from flatout_explain.documents import convert

SHORT_S = 60.0
"""Seconds of training below which a run is not planned: it follows the rule or an earlier plan."""

SHARE = 0.05
"""Maximum share of the expected time that is spent on planning."""

LOOK_S = 2.0
"""Seconds of training after which a run's length is estimated."""

MOST_S = 30.0
"""Maximum seconds of planning, however long the run is."""

MOVABLE = ("env", "act", "replay")
"""Spans of work that another placement can do elsewhere; with a GPU, learning is one of them."""

ASIDE = ("eval", "checkpoint")
"""Spans of work that a prediction leaves out."""

COMPILING_S = 10.0
"""Minimum seconds of measuring for a run in one program, because several are compiled."""

WORTH = 2.0
"""Planning begins if another placement could save at least this many times planning's own time."""

STARTING_S = 3.0
"""Seconds that a child process takes to start and to import, in addition to its measurements."""


def ask(
    question: Question, code: UserCode, limit_s: float, total_s: float = math.inf,
    announce: Callable[[str], None] = say,
) -> Answer:  # fmt: skip
    """Measure and predict in a child process; arguments and exceptions are those of
    `probe_process.call`.

    If the process ends too early, the answer follows from its measurements so far, with a note.
    """
    from flatout.planning.found import Found, conclude
    from flatout.run.probe_process import MeasuringError, call

    try:
        return Answer.from_json(
            call("flatout.run.planned:as_json", (question, code), limit_s, total_s, announce)
        )
    except MeasuringError as stop:
        if stop.so_far is None:
            raise
        answer = conclude(question, convert(stop.so_far, Found))
        note = f"{stop}: what was measured before is used, other placements {LEFT_OUT}"
        return replace(answer, notes=(*answer.notes, note))


def measured(config: TrainConfig, text: str, hardware: Hardware, budget_s: float) -> Answer:
    """Measure placements, and save the plan.

    Args:
        text: the placement that the search starts from.

    Raises:
        UsageError: the settings name devices that are not here, or cannot carry their shards.
        FlatoutError: it failed.
    """
    run = config.run
    base, _ = resolve_placement(text, hardware, soft=run.soft_placement, devices=run.devices)
    refuse_shards(base, run.shards)
    say(
        f"measuring takes about {budget_s + STARTING_S:.0f} s; a part of it that has not ended "
        f"after {2 * budget_s + 60.0:.0f} s is given up"
    )
    answer = ask(question(config, base, hardware, budget_s), NAMED, 2 * budget_s + 60.0)
    remember(config, hardware, NAMED, answer)
    return answer


class Replanned(Exception):  # noqa: N818 - an event, not an error
    """The event that a run changes to another placement.

    Attributes:
        chosen: the other placement with its prediction.
        same: whether its bits are the same, so that the training so far is kept.
    """

    def __init__(self, chosen: Prediction, same: bool) -> None:
        super().__init__(str(chosen.placement))
        self.chosen, self.same = chosen, same


class Planner:
    """The planning of a run: it is planned once, when its length can be estimated, and its speed is
    compared with the prediction.

    Args:
        config: the run's settings.
        placement: the run's.
        expected: the prediction by which `placement` was chosen; None if nothing was planned.
        announce: receives sentences for the user.
        spans: the run's.
        keeps: whether the run must not begin again, because it was resumed or has callbacks.
    """

    def __init__(
        self, config: TrainConfig, placement: Placement, hardware: Hardware, code: UserCode,
        announce: Callable[[str], None], spans: Spans, expected: Prediction | None = None,
        keeps: bool = False,
    ) -> None:  # fmt: skip
        self._config, self._placement, self._hardware = config, placement, hardware
        self._code, self._announce = code, announce
        self._keeps, self._born, self._began = keeps, 0.0, 0.0
        self._spans, self._movable_s = spans, 0.0
        self._steps: int | None = None
        self._done, self.expected = expected is not None, expected
        self._checked: tuple[int, float, float] | None = None

    @property
    def settled(self) -> bool:
        """Whether the run will not begin again with another placement."""
        return self._done or self._keeps

    def look(self, steps: int, lengths: Sequence[int] = ()) -> Replanned | None:
        """Plan if it is time for it and the run is long enough.

        Args:
            steps: made so far.
            lengths: steps of the latest episodes.

        Returns:
            Another placement, if that is faster.
        """
        now = time.perf_counter()
        self._born = self._born or now
        if self._steps is None:  # the first iteration is not steady
            self._steps, self._began, self._movable_s = steps, now, self._movable()
            if (address := self._config.run.ray_address) is not None and not self._done:
                self._announce(
                    f"placement auto: the machines of --ray-address {address} are compared with "
                    f"this one after {LOOK_S:g} s, if the run is long enough"
                )
        spent = now - self._began
        if spent < LOOK_S or steps == self._steps or self._done:
            return None
        self._done = True
        total = self._config.run.steps
        left_s = (total - steps) * spent / (steps - self._steps)
        budget = min(SHARE * left_s, MOST_S) - STARTING_S
        least = COMPILING_S if self._placement.steps_on_device else 0.0
        if left_s < SHORT_S or budget <= least:
            return self._stay("the run is short")
        most = (self._movable() - self._movable_s) / spent * left_s  # seconds that could be saved
        if most < WORTH * (budget + STARTING_S):
            return self._stay("another placement could save little")
        # A run whose first iterations took long has more to lose than to gain by beginning again.
        self._keeps = self._keeps or now - self._born > SHARE * left_s
        return self._plan(budget, lengths)

    def _stay(self, why: str) -> None:
        """Say that the cluster that the settings name is not used, because nothing is measured."""
        if (address := self._config.run.ray_address) is not None:
            self._announce(
                f"placement auto: {why}, so that nothing is measured and --ray-address {address} "
                "is not used; --placement sampler=cluster uses it"
            )

    def _movable(self) -> float:
        """Return the seconds spent so far on work that another placement can do elsewhere."""
        names = (*MOVABLE, "learn", "fused") if self._hardware.usable_gpus else MOVABLE
        if self._config.env.backend_open:  # the host may be faster
            names = {*names, "fused"}
        return sum(self._spans.seconds(name) for name in names)

    def check(self, steps: int, lengths: Sequence[int] = ()) -> Replanned | None:
        """Compare the run's speed with its prediction at a checkpoint, and say once if it is
        slower.

        Returns:
            With ``--replan`` another placement that is faster now and acts in the same groups.
        """
        now = time.perf_counter()
        self._keeps = True  # what is saved is never thrown away
        aside = sum(self._spans.seconds(name) for name in ASIDE)
        before, self._checked = self._checked, (steps, now, aside)
        if self.expected is None or before is None:
            return None
        spent = now - before[1] - (aside - before[2])
        if spent < LOOK_S:
            return None
        rate, expected = (steps - before[0]) / spent, self.expected
        if rate >= expected.low:  # a faster run is no news
            return None
        self._checked, self.expected = None, None  # once
        again = self._config.run.replan
        self._announce(
            f"{rate:,.0f} steps/s, and {expected.low:,.0f} to {expected.high:,.0f} were predicted: "
            "something here is not as it was measured"
            + ("" if again else "; --replan measures again at a checkpoint")
        )
        left_s = (self._config.run.steps - steps) / max(rate, 1e-9)
        budget = min(SHARE * left_s, MOST_S) - STARTING_S
        if not again or budget <= 0.0:
            return None
        return self._plan(budget, lengths)

    def _plan(self, budget: float, lengths: Sequence[int]) -> Replanned | None:
        most = 2 * budget + 30.0
        self._announce(
            f"measuring placements on this machine, which takes about {budget + STARTING_S:.0f} s "
            f"and at most {most:.0f} s; --placement '{self._placement}' measures nothing"
        )
        asked = question(self._config, self._placement, self._hardware, budget, lengths)
        try:
            with self._spans.span(PLAN):
                answer = ask(asked, self._code, budget + 30.0, most, self._announce)
        except FlatoutError as error:
            self._announce(
                f"placement auto: measuring failed ({error}); the run stays on '{self._placement}'"
            )
            return None
        # A run that was planned before names what was chosen then.
        automatic = replace(self._config, run=replace(self._config.run, placement="auto"))
        remember(automatic, self._hardware, self._code, answer)
        for note in answer.notes:
            self._announce(note)
        self._announce(f"placement auto: {answer.words()}")
        chosen = answer.chosen.placement
        same = _bits(chosen) == _bits(asked.base)
        if chosen == asked.base:
            self.expected = answer.chosen
            return None
        if self._keeps and not same:
            why = "it chooses actions for other numbers of environments at once"
            if chosen.steps_on_device or asked.base.steps_on_device:
                why = "its environments step in another program"
            self._announce(
                f"{why}, so that the run would have to begin again: it stays as "
                f"it is; --placement '{chosen}' takes it"
            )
            return None
        return Replanned(answer.chosen, same)


def _bits(placement: Placement) -> tuple[Any, ...]:
    """Return the parts of a placement that decide a run's bits: environments on a device draw other
    episodes than those on the host, and one program rounds differently from two."""
    return placement.groups or 1, placement.steps_on_device, placement.fused
