"""From stacks to phases: the one interface to a process's survey and the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flatout_explain.program import tags
from flatout_explain.program.codes import Leaf, Made
from flatout_explain.program.evidence import Process
from flatout_explain.program.flow import Site
from flatout_explain.program.marks import Marks
from flatout_explain.program.phase_rules import RULES
from flatout_explain.program.roles import Roles
from flatout_explain.program.survey import LEARN, Frames, Networks, Place, Seen, Survey

PIPES = 8  # innermost frames among which a pipe's or queue's function is looked for


@dataclass(frozen=True)
class Mark:
    """The phase of a place."""

    phase: str  # of `flatout.spans.PHASES`, or ``import``
    waits: bool  # whether it waits
    site: Site | None  # the innermost line of the program; None in libraries' threads
    call: str  # name of the current call
    piped: bool = False  # whether it is in a pipe or queue between processes
    fetches: bool = False  # whether it asks a device for a result, and may wait for it
    user: Site | None = None  # the program's own line that leads to `site`, if that is a library's
    marked: str = ""  # who says that it is this phase (see `marks`); empty where rules decided
    resets: bool = False  # whether an environment is reset there, which is a part of ``env``


class Places:
    """Decides the phase of every place of a process, from all that was `seen` of it."""

    def __init__(
        self, process: Process, networks: Networks, seen: Sequence[Seen] = (),
        marks: Marks | None = None,
    ) -> None:  # fmt: skip
        self.survey = Survey(process, networks, seen)
        self._roles = Roles(self.survey)
        self._marks = marks
        self._cache: dict[tuple[Frames, str], Mark] = {}

    @property
    def applied(self) -> bool:
        """Whether gradients were seen to be taken or applied."""
        return self.survey.learns()

    @property
    def stepping(self) -> set[int]:
        """The functions that step an environment."""
        return self.survey.stepping

    def mark(self, frames: Frames, leaf: Leaf) -> Mark:
        """Return the phase of a place."""
        key = (frames, leaf.text + leaf.call)
        if key not in self._cache:
            self._cache[key] = self._decide(self.survey.place(frames, leaf))
        return self._cache[key]

    def role(self, frames: Frames) -> str:
        """Return whether a network that is called there acts, learns or evaluates."""
        place = replace(self.survey.place(frames, Leaf()), tag="network")
        return "eval" if self._roles.evaluates(place) else self._roles.role(place)

    def waited_for(self, frames: Frames, leaf: Leaf) -> tuple[str, Site | None, Made | None]:
        """Return the phase of the device's work that a place waits for, and, where they are known,
        the line that started that work and its call."""
        place = self.survey.place(frames, leaf)
        found = self.survey.made(place)
        if found is None:
            return self._roles.awaited(place), None, None
        site, made = found
        if made.learns:
            return LEARN, site, made
        program = (site, *place.program[1:])
        return self._roles.role(replace(place, tag="compiled", program=program)), site, made

    def _decide(self, place: Place) -> Mark:
        site = place.program[0] if place.program else None
        user = self.survey.own_line(place)
        innermost = self.survey.process.codes[place.frames[0][0]]
        waits = tags.is_wait(place.leaf, innermost)
        call = place.leaf.word or innermost.plain
        if (marked := self._marked(place)) is not None:
            phase, by = marked
            fetches = self.survey.fetches(place)
            return Mark(phase, False, site, call, fetches=fetches, user=user, marked=by)
        phase = next(filter(None, (rule(self._roles, place) for rule in RULES)), "other")
        fetches = self.survey.fetches(place) and phase != "import"
        if phase == "env" and place.leaf.word == "sleep":
            waits = False  # a slow environment
        if phase in ("learn", "act", "replay", "other") and waits and not fetches:
            phase = "wait"
        moves = phase == "learn" and tags.is_transfer(place.leaf, innermost)
        torch = "torch" in self.survey.process.libraries
        if not fetches and (moves or (phase == "other" and torch and tags.takes_out(place.leaf))):
            phase = "transfer"
        piped = any(self.survey.tag(index) == "ipc" for index, _ in place.frames[:PIPES])
        resets = phase == "env" and self.survey.resets(place)
        return Mark(phase, waits, site, call, piped, fetches, user, resets=resets)

    def _marked(self, place: Place) -> tuple[str, str] | None:
        """Return the phase of the innermost mark around a place, and who says so. What is imported
        inside of a mark is no part of it."""
        if self._marks is None:
            return None
        for index, line in place.frames:
            if self.survey.tag(index) == "import":
                return None
            if (found := self._marks.around(index, line)) is not None:
                return found
        return None
