"""Facts about a process's functions and lines, from all that was seen of it.

Which functions learn, step environments, draw rows or call networks; which loops and lines do; and
which functions are always on the stack. The rules of `flatout.explain.program.phase_rules` read
them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flatout.explain.program import tags
from flatout.explain.program.evidence import Leaf, Made, Process

Frames = tuple[tuple[int, int], ...]  # (code, line) of each frame, innermost first
Site = tuple[int, int]  # (code, line) of the program
Seen = tuple[Frames, Leaf, float]  # and seconds

ALWAYS = 0.97  # a function on the stack for more than this share of the time is a root
CALLERS = 2  # number of callers by which a line's calls of a network are distinguished

Networks = Mapping[tuple[Site, ...], tuple[int, bool | None]]
"""By a line and some of its callers how they call networks, from windows: median batch size (0 if
unknown), and whether gradients were on."""


@dataclass(frozen=True)
class Place:
    """A stack, as the rules read it."""

    frames: Frames
    leaf: Leaf
    program: tuple[Site, ...]  # the program's frames
    # what the frames' code is: a phase, ``network`` (which acts or learns), or None
    tag: str | None


def chains(sites: Sequence[Site]) -> Iterator[tuple[Site, ...]]:
    """Each line with its callers, longest chain first, from the innermost line outwards."""
    for first in range(len(sites)):
        for length in range(CALLERS, -1, -1):
            if first + length < len(sites):
                yield tuple(sites[first : first + length + 1])


def program_of(process: Process) -> Callable[[Frames], list[Site]]:
    """A function that selects the program's frames of a stack."""
    codes = enumerate(process.codes)
    inside = {index for index, code in codes if tags.is_program(code, process.stdlib)}
    return lambda frames: [site for site in frames if site[0] in inside]


def _env_functions(process: Process) -> set[int]:
    """Environments' functions: those that return a step's tuple, and others of their classes."""
    codes = process.codes
    stepping = {code for code, kinds in process.returns.items() if tags.steps(kinds)}
    stepping = {code for code in stepping if tags.is_program(codes[code], process.stdlib)}
    classes = {codes[at].cls for at in stepping if not any(map(codes[at].has, tags.NOT_ENV))}
    return stepping | {
        index
        for index, code in enumerate(codes)
        if code.cls and code.cls in classes and not code.plain.startswith("__")
    }


def _function_tags(process: Process) -> list[str | None]:
    """The tag of each function."""
    found = [tags.frame_tag(code, process.stdlib) for code in process.codes]
    for index in _env_functions(process):
        if found[index] in (None, "replay"):
            found[index] = "env"
    return found


class Survey:
    """The work of a process's functions and lines.

    Attributes:
        places: all that was seen, and for how long.
        learns, steps, draws, calls, writes: functions below which gradients, environment steps,
            draws of rows, calls of networks and writing to files were seen.
        moving: seconds that a function itself spent copying, minus those it spent otherwise.
        roots: functions that are always on the stack, which tell nothing.
        evaluations: functions that step environments greedily, next to others that collect.
        any_draws: whether rows are drawn at random anywhere.
    """

    def __init__(self, process: Process, networks: Networks, seen: Sequence[Seen]) -> None:
        self.process, self.networks = process, networks
        self.program = program_of(process)
        self._tags = _function_tags(process)
        self.learns, self.steps, self.draws = set[int](), set[int](), set[int]()
        self.calls, self.writes = set[int](), set[int]()
        self.moving: defaultdict[int, float] = defaultdict(float)
        self.any_draws = False
        # lines of each function below which environments step (resets may follow an update), and
        # gradients are taken
        self._lines: dict[str, defaultdict[int, set[int]]] = {
            "env": defaultdict(set), "learn": defaultdict(set),
        }  # fmt: skip
        self.places = [(self.place(frames, leaf), seconds) for frames, leaf, seconds in seen]
        for place, seconds in self.places:
            self._count(place, seconds)
        self.roots = self._find_roots()
        self.evaluations = self._find_evaluations()

    # --- Stacks -------------------------------------------------------------------------------

    def place(self, frames: Frames, leaf: Leaf) -> Place:
        """A stack with its program's frames and its tag."""
        return Place(frames, leaf, tuple(self.program(frames)), self._tag_of(frames, leaf))

    def tag(self, index: int) -> str | None:
        """The tag of a function."""
        return self._tags[index]

    def fetches(self, place: Place) -> bool:
        """Whether a place asks JAX's device for a result."""
        inner = (self.process.codes[index] for index, _ in place.frames[:4])
        return place.leaf.word in tags.BLOCKS or any(map(tags.fetches, inner))

    def drawn(self, place: Place) -> bool:
        """Whether a place draws rows at random."""
        inner = any(self.tag(index) == "draw" for index, _ in place.frames)
        return inner or tags.is_draw(place.leaf)

    def made(self, place: Place) -> tuple[Site, Made] | None:
        """The line and the compiled call whose result a place uses, where the probe found it."""
        for code, line in place.program[:2]:
            if (made := self.process.made.get((code, line))) is not None:
                return (code, made.line), made
        return None

    def _tags_of(self, frames: Frames) -> tuple[set[str | None], set[str | None]]:
        """Tags of frames within the program's innermost function, and of those around it.

        Callers of the program (a pool's worker loop, a script's import) do no work themselves.
        """
        inner: set[str | None] = set()
        outer: set[str | None] = set()
        target = inner
        for at, site in enumerate(frames):
            tag = self.tag(site[0])
            target.add(None if tag == "copy" and self._called_by_jax(frames[at + 1 :]) else tag)
            if self.program((site,)) and self.process.codes[site[0]].plain != "<module>":
                target = outer
        return inner, outer

    def _imports_package(self, frames: Frames) -> bool:
        """Whether an installed package is being imported: its modules may call functions.

        The import of one of the user's own files is not counted, because a launcher may run the
        whole program by importing it.
        """
        module = ""
        for index, _ in frames:
            if self.tag(index) == "import":
                return bool(tags.installed(module))
            if self.process.codes[index].plain == "<module>":
                module = self.process.codes[index].file
        return False

    def _called_by_jax(self, callers: Frames) -> bool:
        """Whether JAX itself calls its copying function, as it does to check arguments."""
        codes = (self.process.codes[index] for index, _ in callers)
        caller = next((code for code in codes if code.plain not in tags.WRAPPERS), None)
        return caller is not None and tags.is_jax(caller)

    def _tag_of(self, frames: Frames, leaf: Leaf) -> str | None:
        """The phase of a stack by its frames and leaf; ``network`` and None are undecided."""
        inner, outer = self._tags_of(frames)
        both, compiled = inner | outer, leaf.kind.get("compiled")
        waits = tags.is_wait(leaf, self.process.codes[frames[0][0]])
        moves = self.program(frames) or leaf.word in tags.MOVES  # else it is a service thread
        rules = (
            ("import", "import" in inner or self._imports_package(frames)),
            ("communicate", "communicate" in both),
            ("network", "predict" in both),
            ("input", "input" in both),
            ("env", "ipc" in inner and waits and "env" in both),
            ("ipc", "ipc" in inner and not waits and moves),
            ("wait", "ipc" in inner),
            ("io", "io" in inner or tags.is_write(leaf)),
            ("transfer", "copy" in inner and "env" not in both),
            ("env", "env" in both),
            ("replay", "replay" in both),
            ("wait", waits),
            ("learn", "optimise" in both or (compiled and leaf.kind.get("learns"))),
            ("network", "network" in both or compiled),
            ("ipc", leaf.word in tags.PICKLES and "json" not in leaf.call),
        )
        return next((tag for tag, holds in rules if holds), None)

    # --- Functions and lines ------------------------------------------------------------------

    def learning(self, place: Place) -> int | None:
        """Position of the innermost function that learns and never steps, or None."""
        for position, (code, _) in enumerate(place.frames):
            if code in self.learns and code not in self.steps and code not in self.roots:
                return position
        return None

    def only_writes(self, code: int) -> bool:
        """Whether a function writes to files, and does nothing else of training."""
        others = (self.learns, self.steps, self.draws, self.calls)
        return code in self.writes and not any(code in found for found in others)

    def by_loop(self, site: Site) -> str | None:
        """Whether a line acts or learns, by the innermost loop around it that does either.

        In a loop that does both, what follows the last step and precedes the last gradient learns,
        and the rest acts.
        """
        code, line = site
        loops = [loop for loop in self.process.codes[code].loops if loop[0] <= line <= loop[1]]
        for first, last in reversed(loops):
            steps, learns = (
                [at for at in self._lines[phase][code] if first <= at <= last]
                for phase in ("env", "learn")
            )
            if steps and not learns:
                return "act"
            if learns and not steps:
                return "learn"
            if steps and learns:
                return "learn" if max(steps) < line <= max(learns) else "act"
        return None

    def _count(self, place: Place, seconds: float) -> None:
        """Count a place for each function and each line of the program on its stack."""
        if any(self.tag(index) == "import" for index, _ in place.frames):
            return  # imports are not the functions' work
        tag, program, leaf = place.tag, place.program, place.leaf
        if self.fetches(place) and (made := self.made(place)) is not None and made[1].learns:
            tag, program = "learn", (made[0], *program[1:])
        found = {
            "learn": self.learns, "env": self.steps, "network": self.calls, "io": self.writes,
        }  # fmt: skip
        if tag in found:
            found[tag].update(code for code, _ in program)
        if tag in self._lines and not self._resets(place):
            for code, line in program:
                self._lines[tag][code].add(line)
        drawn = self.drawn(place)
        if tag is None and program:
            self.moving[program[0][0]] += seconds if leaf.word in tags.COPIES else -seconds
        if drawn and program:
            self.draws.add(program[0][0])
        if tag == "replay" or (drawn and leaf.word not in ("integers", "randint")):
            self.any_draws = True

    def _resets(self, place: Place) -> bool:
        """Whether a place is in an environment's reset."""
        codes = (self.process.codes[i] for i, _ in place.frames if self.tag(i) == "env")
        return place.tag == "env" and any(code.plain.startswith("reset") for code in codes)

    def _find_roots(self) -> set[int]:
        """Functions that are always on the stack."""
        weights: defaultdict[int, float] = defaultdict(float)
        total = 0.0
        for place, seconds in self.places:
            if place.tag == "import":
                continue
            total += seconds
            for code in {code for code, _ in place.program}:
                weights[code] += seconds
        return {code for code, weight in weights.items() if weight > ALWAYS * total}

    def _find_evaluations(self) -> set[int]:
        """Functions that step environments and never learn, choose by ``argmax`` or the like, and
        draw and keep nothing; if environments also step, for learning, where none of them is on
        the stack."""
        found = {
            code
            for code in self.steps
            if code not in self.roots
            and self.tag(code) is None
            and code not in self.learns
            and tags.is_evaluation(self.process.codes[code])
        }
        # Updates may be too rare to be seen.
        learns = self.learns or any(code.learns for code in self.process.codes)
        if not found or not learns:
            return set()
        collects = any(
            place.tag == "env" and found.isdisjoint(code for code, _ in place.frames)
            for place, _ in self.places
        )
        return found if collects else set()
