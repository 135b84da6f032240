"""Phases that the program or the user states: marked blocks, and functions named by ``--phase``.

They decide before all rules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PureWindowsPath

from flatout_explain.errors import UsageError
from flatout_explain.phases import MARKABLE, no_phase
from flatout_explain.program.codes import Code
from flatout_explain.program.evidence import Evidence, Process, Span
from flatout_explain.report import place_words

SEVERAL = " or "  # between the texts of a mark that is not the same each time

EVERYWHERE = 1 << 30  # a line behind all others

PROGRAM, FLAG = "the program", "--phase"
"""Who decided a marked phase."""


@dataclass(frozen=True)
class FunctionPhase:
    """A function whose time is all of one phase."""

    phase: str
    module: str
    function: str  # with its class's name, if it is a method

    @staticmethod
    def parse(word: str) -> FunctionPhase:
        """Read ``PHASE=MODULE:FUNCTION``.

        Raises:
            UsageError: it is malformed, or the phase is unknown.
        """
        phase, _, function = word.partition("=")
        module, _, name = function.partition(":")
        parts = (*module.split("."), *name.split("."))
        if not all(map(str.isidentifier, parts)):
            raise UsageError(
                f"--phase {word}: write PHASE=MODULE:FUNCTION, such as env=train:collect or "
                "env=train:Maze.step."
            )
        if phase not in MARKABLE:
            raise UsageError(f"--phase {word}: {no_phase(phase)}")
        return FunctionPhase(phase, module, name)

    def names(self, code: Code, argv: Sequence[str], main: str = "") -> bool:
        """Return whether a function of a process with this command line, and with this file as its
        main module, is the one."""
        owner, _, plain = self.function.rpartition(".")
        if code.plain != plain or not self._holds(code.file, argv, main):
            return False
        if code.qualname:
            return code.qualname.rpartition("<locals>.")[2] == self.function
        if code.owner is None or not owner:
            return not owner
        classes = [code.owner["name"], *(base.rpartition(".")[2] for base in code.owner["bases"])]
        return owner.rpartition(".")[2] in classes

    def _holds(self, file: str, argv: Sequence[str], main: str) -> bool:
        """Return whether a file is that of the module."""
        if self.module == "__main__":
            return file in (*argv, main) or (file == "<string>" and "-c" in argv)
        wanted = self.module.split(".")
        path = PureWindowsPath(file)  # of either kind of slash
        parts = list(path.parts[:-1] if path.name == "__init__.py" else path.with_suffix("").parts)
        return parts[-len(wanted) :] == wanted


class Marks:
    """The marked lines of one process."""

    def __init__(self, evidence: Evidence, process: Process) -> None:
        self._spans: dict[int, list[tuple[Span, str]]] = defaultdict(list)
        for word in evidence.phases:
            function = FunctionPhase.parse(word)
            for index, code in enumerate(process.codes):
                if function.names(code, process.argv, process.main):
                    self._spans[index].append(((0, EVERYWHERE, function.phase), FLAG))
        for index, spans in process.marks.items():
            self._spans[index] += [(span, PROGRAM) for span in spans if span[2] in MARKABLE]

    def around(self, code: int, line: int) -> tuple[str, str] | None:
        """Return the phase of the innermost mark around a line, and who says so; None without."""
        within = [each for each in self._spans.get(code, ()) if each[0][0] <= line <= each[0][1]]
        if not within:
            return None
        (_, _, phase), by = min(reversed(within), key=lambda each: each[0][1] - each[0][0])
        return phase, by


def notes(evidence: Evidence) -> Iterator[str]:
    """Yield sentences about marks that decide nothing."""
    for word in evidence.phases:
        function = FunctionPhase.parse(word)
        if not any(
            function.names(code, process.argv, process.main)
            for process in evidence.processes
            for code in process.codes
        ):
            yield f"--phase {word}: no such function was seen; check its module and name."
    several = {
        (process.codes[index].file, first): text
        for process in evidence.processes
        for index, spans in process.marks.items()
        for first, _, text in spans
        if not set(text.split(SEVERAL)).isdisjoint(MARKABLE) and text not in MARKABLE
    }
    for place, text in several.items():
        yield (
            f"The mark at {place_words(place)} is ignored, because its phase is not the same each "
            f"time ({text}): write one `with` for each phase."
        )
