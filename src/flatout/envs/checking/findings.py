"""Findings about an environment, and their collection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

Kind = Literal["error", "warning", "note"]

ORDER: tuple[Kind, ...] = ("error", "warning", "note")


class Finding(NamedTuple):
    """A sentence about an environment.

    Attributes:
        kind: error: it is wrong, and training fails or learns something else than the user wants;
            warning: it works here, but not everywhere; note: what Flatout makes of it.
        topic: a word for programs that read findings, such as ``determinism``.
        text: what is wrong, with which value, and what to do.
    """

    kind: Kind
    topic: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Findings:
    """A list of findings; of each topic and path only the first is kept, because a fault returns in
    every step.

    Args:
        on_new: is called with each new finding and its path.
    """

    def __init__(self, on_new: Callable[[Finding, str], object] | None = None) -> None:
        self.found: list[Finding] = []
        self._seen: set[tuple[str, str]] = set()
        self._on_new = on_new

    def add(self, kind: Kind, topic: str, text: str, path: str = "") -> None:
        """Add a finding, unless there is one of the topic about the same path."""
        if (topic, path) in self._seen:
            return
        self._seen.add((topic, path))
        self.found.append(Finding(kind, topic, text))
        if self._on_new is not None:
            self._on_new(self.found[-1], path)

    def has(self, *topics: str) -> bool:
        """Return whether there is a finding of one of these topics."""
        return any(finding.topic in topics for finding in self.found)

    def ordered(self) -> list[Finding]:
        """Return errors first, then warnings, then notes."""
        return sorted(self.found, key=lambda finding: ORDER.index(finding.kind))
