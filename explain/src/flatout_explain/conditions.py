"""Conditions on a diagnosis, as ``--fail-if`` gives them: ``env > 50``. Pure."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass

from flatout_explain.cards import WORKS
from flatout_explain.causes import CAUSE_OF, CAUSES, UNKNOWN
from flatout_explain.diagnosis import Diagnosis
from flatout_explain.errors import UsageError, nearest
from flatout_explain.phases import PHASES
from flatout_explain.report import meters, percent

CODE = 3
"""The exit code of `flatout explain` where a condition holds."""

IDLE = "gpu-idle"
"""The mean share of the time in which GPUs compute nothing: of those that compute for more than
`WORKS` of the time, or of all if none does."""

WITHOUT_SHARE = ("devices-reserved", "memory-contended", "memory-full")
WORDS = (*PHASES, *(cause for cause in CAUSES if cause not in WITHOUT_SHARE), IDLE)

FORM = re.compile(r"\s*([\w-]+)\s*(>=|<=|>|<)\s*(\d+\.?\d*|\.\d+)\s*%?\s*")
COMPARED = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True)
class Condition:
    """A condition on the share of the time of a phase or a cause."""

    word: str
    relation: str  # of `COMPARED`
    percent: float

    @staticmethod
    def parse(text: str) -> Condition:
        """Read ``WORD > PERCENT``.

        Raises:
            UsageError: it has another form, an unknown word or an impossible percentage.
        """
        matched = FORM.fullmatch(text)
        if matched is None:
            raise UsageError(
                f'--fail-if {text!r} is no condition: write --fail-if "env > 50", in quotation '
                "marks, with >, >=, < or <= and a number of per cent."
            )
        word, relation, number = matched.groups()
        if word not in WORDS:
            raise UsageError(
                f"--fail-if {text!r}: {word!r} is no phase or cause.{nearest(word, WORDS)} There "
                f"are: {', '.join(WORDS)}."
            )
        if float(number) > 100:
            raise UsageError(f"--fail-if {text!r}: a share of the time is at most 100 per cent.")
        return Condition(word, relation, float(number))

    def __str__(self) -> str:
        return f"{self.word} {self.relation} {self.percent:g}"

    def share(self, diagnosis: Diagnosis) -> float | None:
        """Return the share of the time that the condition is about; None if it is unknown."""
        if self.word == IDLE:
            return _idle(diagnosis)
        if not diagnosis.phases:
            return None
        if self.word in PHASES:
            return diagnosis.phases.get(self.word, 0.0)
        if listed := [one.share for one in diagnosis.findings if one.id == self.word]:
            return max(listed)
        # A small cause is not listed; its phase is known.
        if phase := next((phase for phase, cause in CAUSE_OF.items() if cause == self.word), None):
            return diagnosis.phases.get(phase, 0.0)
        return None if any(one.id == UNKNOWN for one in diagnosis.findings) else 0.0

    def verdict(self, diagnosis: Diagnosis) -> tuple[bool | None, str]:
        """Return whether the condition holds, and a sentence about it; None if its share is
        unknown."""
        share = self.share(diagnosis)
        if share is None:
            why = "no time could be explained"
            if self.word == IDLE:
                why = "no GPU was measured"
            elif diagnosis.phases:
                why = "a part of the time could not be explained"
            return None, f'--fail-if "{self}" cannot be judged: {why}.'
        holds = COMPARED[self.relation](100 * share, self.percent)
        takes = "the GPUs are idle" if self.word == IDLE else f"{self.word} takes"
        return holds, f'--fail-if "{self}" holds: {takes} {percent(share)} of the time.'


def _idle(diagnosis: Diagnosis) -> float | None:
    """Return the mean idle share of the GPUs: as recorded, or else as sampled."""
    known = list(diagnosis.busy.values())
    if not known:
        gpus = [one.mean for one in meters(diagnosis) if one.name.endswith(" busy")]
        known = [share for share in gpus if share is not None]
    busy = [share for share in known if share > WORKS] or known
    return 1.0 - sum(busy) / len(busy) if busy else None
