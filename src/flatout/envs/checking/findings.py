"""Findings about an environment, and their collection."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["error", "warning", "note"]


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
    every step."""

    def __init__(self) -> None:
        self.found: list[Finding] = []
        self._seen: set[tuple[str, str]] = set()

    def add(self, kind: Kind, topic: str, text: str, path: str = "") -> None:
        """Add a finding, unless there is one of the topic about the same path."""
        if (topic, path) not in self._seen:
            self._seen.add((topic, path))
            self.found.append(Finding(kind, topic, text))

    def has(self, *topics: str) -> bool:
        """Return whether there is a finding of one of these topics."""
        return any(finding.topic in topics for finding in self.found)
