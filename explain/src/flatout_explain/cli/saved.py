"""Saved evidence of a program or a run, read and diagnosed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout_explain import documents
from flatout_explain.errors import FlatoutError, UsageError, damage, with_full_stop
from flatout_explain.output import command_name

if TYPE_CHECKING:
    from flatout_explain.against.rounds import Comparison
    from flatout_explain.diagnosis import Diagnosis


OfRun = Callable[[Mapping[str, Any]], "Diagnosis"]
"""Diagnoses saved evidence of a run of Flatout."""


@contextmanager
def intact(otherwise: str, remedy: str) -> Iterator[None]:
    """Refuse damaged values, with a sentence in which the damage is in brackets."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise FlatoutError(f"{otherwise} ({damage(error)}): {remedy}.") from None


def read_saved(
    path: Path,
    of_run: OfRun,
    phases: Sequence[str] = (),
    profile: str | None = None,
) -> tuple[Diagnosis, Comparison | None]:
    """Diagnose saved evidence of a program or a run; also return its comparison, if it has one.

    Args:
        path: the file.
        of_run: diagnoses evidence of a run of Flatout.
        phases: more functions whose phase is given.
        profile: a file for the program's samples, in speedscope's form.
    """
    from flatout_explain.against.rounds import Comparison
    from flatout_explain.program import diagnose, evidence, speedscope

    try:
        values = documents.read_json(path, limit=evidence.MOST_BYTES)
    except (OSError, ValueError) as error:
        raise FlatoutError(
            f"{path} is not evidence that {command_name()} --save wrote: {with_full_stop(error)}"
        ) from None
    parts = dict(values) if isinstance(values, dict) else {}  # `from_json` takes its parts out
    try:
        with intact(f"{path} is damaged evidence", "record it again"):
            if parts.get("kind") == "run":
                if profile is not None:
                    raise UsageError("--save: evidence of a run has no samples for a profile.")
                if phases:
                    raise UsageError("--phase: the phases of a run are recorded, not decided.")
                found = of_run(values)
            else:
                read = evidence.from_json(values, path)
                read.phases = tuple(dict.fromkeys((*read.phases, *phases)))
                found = diagnose.diagnose(read)
                if profile is not None:
                    speedscope.write(Path(profile), read)
            found.check()
        if "against" not in parts:
            return found, None
        with intact(f"{path} holds a damaged comparison", "measure it again"):
            comparison = Comparison.from_json(parts["against"])
            _ = comparison.outcome  # which impossible figures make fail
            return found, comparison
    except FlatoutError as error:
        if str(path) in str(error):
            raise
        raise FlatoutError(f"{path}: {error}") from None
