"""From stacks to phases: the one interface to a process's survey and the rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from flatout.explain.program import tags
from flatout.explain.program.evidence import Leaf, Made, Process
from flatout.explain.program.marks import Marks
from flatout.explain.program.phase_rules import RULES, Rule, by_name, network_role, role
from flatout.explain.program.survey import Frames, Networks, Place, Seen, Site, Survey

PIPES = 8  # innermost frames among which a pipe's or queue's function is looked for
AROUND = ("env", "act", "learn", "replay", "input")
"""Phases that a line may share with its neighbours."""


@dataclass(frozen=True)
class Mark:
    """The phase of a place."""

    phase: str  # of `flatout.spans.PHASES`, or ``import``
    waits: bool  # whether it waits
    site: Site | None  # the innermost line of the program; None in libraries' threads
    call: str  # name of the current call
    unsure: bool = False  # whether only English words decided the phase
    piped: bool = False  # whether it is in a pipe or queue between processes
    fetches: bool = False  # whether it asks a device for a result, and may wait for it
    marked: str = ""  # who says that it is this phase (see `marks`); empty where rules decided


class Places:
    """Decides the phase of every place of a process, from all that was `seen` of it."""

    def __init__(
        self, process: Process, networks: Networks, seen: Sequence[Seen] = (),
        marks: Marks | None = None,
    ) -> None:  # fmt: skip
        self.survey = Survey(process, networks, seen)
        self._marks = marks
        self._near: dict[int, dict[int, dict[str, float]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(float))
        )
        self._cache: dict[tuple[Frames, str], Mark] = {}
        for place, seconds in self.survey.places:
            phase, _ = self._phase(place, RULES[:-1])
            if phase in AROUND:
                for code, line in place.program:
                    self._near[code][line][phase] += seconds

    @property
    def applied(self) -> bool:
        """Whether gradients were seen to be taken or applied; else only names indicate learning."""
        return bool(self.survey.learns)

    def mark(self, frames: Frames, leaf: Leaf) -> Mark:
        """The phase of a place."""
        key = (frames, leaf.text + leaf.call)
        if key not in self._cache:
            self._cache[key] = self._decide(self.survey.place(frames, leaf))
        return self._cache[key]

    def role(self, batch: int, grad: bool | None) -> str:
        """Whether a network call with such a batch acts or learns."""
        return role(self.survey, batch, grad)

    def waited_for(self, frames: Frames, leaf: Leaf) -> tuple[str, Site | None, Made | None]:
        """Return the phase of the device's work that a place waits for, and, where they are known,
        the line that started that work and its call."""
        place = self.survey.place(frames, leaf)
        found = self.survey.made(place)
        site, made = found if found is not None else (None, None)
        if (made is not None and made.learns) or self.survey.learning(place) is not None:
            return "learn", site, made
        program = place.program if site is None else (site, *place.program[1:])
        return network_role(self.survey, program), site, made

    def _decide(self, place: Place) -> Mark:
        site = place.program[0] if place.program else None
        innermost = self.survey.process.codes[place.frames[0][0]]
        waits = tags.is_wait(place.leaf, innermost)
        fetches = self.survey.fetches(place)
        call = place.leaf.word or innermost.plain
        if (marked := self._marked(place)) is not None:
            phase, by = marked
            return Mark(phase, False, site, call, fetches=fetches, marked=by)
        phase, unsure = self._phase(place, RULES[:-2] if fetches else RULES)
        fetches = fetches and phase != "import"
        if phase == "env" and place.leaf.word == "sleep":
            waits = False  # a slow environment
        if phase in ("learn", "act", "replay", "other") and waits and not fetches:
            phase = "wait"
        if phase == "learn" and not fetches and tags.is_transfer(place.leaf, innermost):
            phase = "transfer"
        piped = any(self.survey.tag(index) == "ipc" for index, _ in place.frames[:PIPES])
        return Mark(phase or "other", waits, site, call, unsure, piped, fetches)

    def _marked(self, place: Place) -> tuple[str, str] | None:
        """The phase of the innermost mark around a place, and who says so. What is imported inside
        of a mark is no part of it."""
        if self._marks is None:
            return None
        for index, line in place.frames:
            if self.survey.tag(index) == "import":
                return None
            if (found := self._marks.around(index, line)) is not None:
                return found
        return None

    def _phase(self, place: Place, rules: Sequence[Rule]) -> tuple[str | None, bool]:
        """The phase by the first rule that decides, and whether only words did."""
        for rule in rules:
            if (phase := rule(self.survey, place, self._near)) is not None:
                return phase, rule is by_name
        return None, False
