"""From stacks to phases.

A stack's phase follows from its frames' tags (`flatout.explain.program.tags`), else from its
context: a function that applies gradients and steps no environment is learning; a network call
elsewhere learns or acts, by its batch and whether gradients are on; a line of a long loop takes the
phase of its neighbour.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flatout.explain.program import tags
from flatout.explain.program.evidence import Leaf, Process

Frames = tuple[tuple[int, int], ...]  # (code, line) of each frame, innermost first
Site = tuple[int, int]  # (code, line) of the program
ALWAYS = 0.97  # a function on the stack for more than this share of the time is a root
NEIGHBOUR = 8  # maximum distance in lines to the neighbour of an undecided line
CALLERS = 2  # number of callers by which a line's calls of a network are distinguished

AROUND = ("env", "act", "learn", "replay", "input")


@dataclass(frozen=True)
class Mark:
    """The phase of a place."""

    phase: str  # of `flatout.spans.PHASES`, or ``import``
    waits: bool  # whether it waits
    site: Site | None  # the innermost line of the program; None in libraries' threads
    call: str  # name of the current call


Networks = Mapping[tuple[Site, ...], tuple[int, bool | None]]
"""By a line and some of its callers how they call networks, from windows: median batch size (0 if
unknown), and whether gradients were on."""


def chains(sites: Sequence[Site]) -> Iterator[tuple[Site, ...]]:
    """Each line with its callers, longest chain first, from the innermost line outwards."""
    for first in range(len(sites)):
        for length in range(CALLERS, -1, -1):
            if first + length < len(sites):
                yield tuple(sites[first : first + length + 1])


def program_of(process: Process) -> Callable[[Frames], list[Site]]:
    """A function that selects the program's frames of a stack."""
    in_program: dict[int, bool] = {}

    def program(frames: Frames) -> list[Site]:
        for index, _ in frames:
            if index not in in_program:
                in_program[index] = tags.is_program(process.codes[index], process.stdlib)
        return [site for site in frames if in_program[site[0]]]

    return program


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


class Places:
    """Decides the phase of every place of a process, from all that was `seen` of it: (frames, leaf,
    seconds)."""

    def __init__(
        self,
        process: Process,
        networks: Networks,
        seen: Iterable[tuple[Frames, Leaf, float]] = (),
    ) -> None:
        self._process, self._networks = process, networks
        self._tags: dict[int, str | None] = {}
        self._program = program_of(process)
        self._cache: dict[tuple[Frames, str], Mark] = {}
        self._env_functions = _env_functions(process)
        self._learns: Counter[int] = Counter()
        self._draws: Counter[int] = Counter()
        self._calls: Counter[int] = Counter()
        self._moving: defaultdict[int, float] = defaultdict(float)
        self._roots: set[int] = set()
        self._steps: Counter[int] = Counter()
        self._lines = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
        self.draws = False
        places = list(seen)
        for frames, leaf, seconds in places:
            self._survey(frames, leaf, seconds)
        self._find_roots(places)
        for frames, leaf, seconds in places:
            mark = self._by_context(frames, leaf) or self._by_name(frames)
            if mark in AROUND:
                for code, line in self._program(frames):
                    self._lines[code][line][mark] += seconds
        self._cache.clear()

    @property
    def applied(self) -> bool:
        """Whether gradients were seen to be taken or applied; else only names indicate learning."""
        return any(self._learns.values())

    def mark(self, frames: Frames, leaf: Leaf) -> Mark:
        """The phase of a place."""
        key = (frames, leaf.text + leaf.call)
        if key not in self._cache:
            self._cache[key] = self._decide(frames, leaf)
        return self._cache[key]

    # --- By a stack's frames ------------------------------------------------------------------

    def _tag(self, index: int) -> str | None:
        if index not in self._tags:
            tag = tags.frame_tag(self._process.codes[index], self._process.stdlib)
            is_env = tag in (None, "replay") and index in self._env_functions
            self._tags[index] = "env" if is_env else tag
        return self._tags[index]

    def _decide(self, frames: Frames, leaf: Leaf) -> Mark:
        program = self._program(frames)
        site = program[0] if program else None
        innermost = self._process.codes[frames[0][0]]
        waits = tags.is_wait(leaf, innermost)
        phase = self._by_context(frames, leaf) or self._by_name(frames)
        phase = phase or self._by_neighbour(program)
        if phase == "env" and leaf.word == "sleep":
            waits = False  # a slow environment
        if phase in ("learn", "act", "replay", "other") and waits:
            phase = "wait"
        if phase == "learn" and tags.is_transfer(leaf, innermost):
            phase = "transfer"
        return Mark(phase or "other", waits, site, leaf.word or innermost.plain)

    def _tags_of(self, frames: Frames) -> tuple[set[str | None], set[str | None]]:
        """Tags of frames within the program's innermost function, and of those around it.

        Callers of the program (a pool's worker loop, a script's import) do no work themselves.
        """
        inner: set[str | None] = set()
        outer: set[str | None] = set()
        target = inner
        for site in frames:
            target.add(self._tag(site[0]))
            if self._program((site,)) and self._process.codes[site[0]].plain != "<module>":
                target = outer
        return inner, outer

    def _by_frames(self, frames: Frames, leaf: Leaf) -> str | None:
        """The phase by the frames' tags and the leaf; ``network`` and None are undecided."""
        innermost = self._process.codes[frames[0][0]]
        inner, outer = self._tags_of(frames)
        both = inner | outer
        waits = tags.is_wait(leaf, innermost)
        if "import" in inner:
            return "import"
        for tag in ("communicate", "predict", "input"):
            if tag in both:
                return "network" if tag == "predict" else tag
        if "ipc" in inner:
            if waits:
                return "env" if "env" in both else "wait"
            if self._program(frames) or leaf.word in tags.MOVES:
                return "ipc"
            return "wait"  # a service thread
        if "io" in inner or tags.is_write(leaf):
            return "io"
        if "copy" in inner and "env" not in both:
            return "transfer"
        for tag in ("env", "replay"):
            if tag in both:
                return tag
        if waits:
            return "wait"
        if "optimise" in both:
            return "learn"
        if leaf.kind.get("compiled"):
            return "learn" if leaf.kind.get("learns") else "network"
        if "network" in both:
            return "network"
        if leaf.word in tags.PICKLES and "json" not in leaf.call:
            return "ipc"
        return None

    def _survey(self, frames: Frames, leaf: Leaf, seconds: float) -> None:
        """Count the tags below each function of the program."""
        if any(self._tag(index) == "import" for index, _ in frames):
            return  # imports are not the functions' work
        tag = self._by_frames(frames, leaf)
        program = self._program(frames)
        counts = {"learn": self._learns, "env": self._steps, "network": self._calls}
        if tag in counts:
            counts[tag].update({code for code, _ in program})
        drawn = leaf.word in tags.DRAWS or any(self._tag(index) == "draw" for index, _ in frames)
        if tag is None and program:
            self._moving[program[0][0]] += seconds if leaf.word in tags.COPIES else -seconds
        if drawn and program:
            self._draws[program[0][0]] += 1
        if tag == "replay" or (drawn and leaf.word not in ("integers", "randint")):
            self.draws = True

    def _find_roots(self, places: list[tuple[Frames, Leaf, float]]) -> None:
        """Find the functions that are always on the stack, which carry no information."""
        weights: defaultdict[int, float] = defaultdict(float)
        total = 0.0
        for frames, leaf, seconds in places:
            if self._by_frames(frames, leaf) == "import":
                continue
            total += seconds
            for code in {code for code, _ in self._program(frames)}:
                weights[code] += seconds
        self._roots = {code for code, weight in weights.items() if weight > ALWAYS * total}

    # --- By its context -----------------------------------------------------------------------

    def _learning(self, frames: Frames) -> int | None:
        """Position of the innermost function that learns and never steps, or None."""
        for position, (code, _) in enumerate(frames):
            if self._learns[code] and not self._steps[code] and code not in self._roots:
                return position
        return None

    def _by_context(self, frames: Frames, leaf: Leaf) -> str | None:
        tag = self._by_frames(frames, leaf)
        if tag not in (None, "network"):
            return tag
        program = self._program(frames)
        position = self._learning(frames)
        if position is not None:
            for code, _ in program:
                if code == frames[position][0]:
                    break
                if (phase := tags.by_words(self._process.codes[code])) in ("replay", "input", "io"):
                    return phase
            replays = leaf.word in tags.DRAWS or (leaf.word in tags.GATHERS and self.draws)
            return "replay" if tag is None and replays else "learn"
        if tag == "network":
            return self._network(program)
        for code, _ in program[:3]:
            if code in self._roots or self._learns[code] or self._steps[code]:
                break
            if self._draws[code] and not self._calls[code]:
                phase = tags.by_words(self._process.codes[code])
                return phase or ("replay" if self._steps else "input")
            if self._moving[code] > 0 and not self._calls[code] and self._learns:
                return "transfer"
        if leaf.word in tags.GATHERS | tags.DRAWS and self.draws and self._steps:
            return "replay" if self._by_neighbour(program) in ("learn", "replay") else None
        if leaf.word in tags.DRAWS and self.draws and self._by_neighbour(program) == "learn":
            return "input"
        return None

    def _network(self, program: list[Site]) -> str:
        """Whether a network call outside of a learning function acts or learns."""
        for chain in chains(program):
            code = chain[0][0]
            if chain[0] != program[0] and self._steps[code] and self._learns[code]:
                break  # the loop around everything tells nothing about one of its calls
            if chain in self._networks:
                return self.role(*self._networks[chain])
        for code, _ in program:
            if self._steps[code] and self._learns[code]:
                break
            if (phase := tags.by_words(self._process.codes[code])) in ("act", "learn"):
                return phase
        return "act" if self._steps else "learn"

    def role(self, batch: int, grad: bool | None) -> str:
        """Whether such a network call acts or learns."""
        largest = max((size for size, learns in self._networks.values() if learns), default=0)
        if grad is False:
            return "learn" if 1 < batch == largest else "act"
        return "act" if batch < largest or (batch <= 1 and not self._learns) else "learn"

    def _by_name(self, frames: Frames) -> str | None:
        """The phase by the names of functions, except roots."""
        for code, _ in self._program(frames):
            if self._steps[code] or code in self._roots:
                return None
            if (phase := tags.by_words(self._process.codes[code])) is not None:
                return phase
        return None

    def _by_neighbour(self, program: list[Site]) -> str | None:
        """The phase of the nearest decided line of the same function."""
        for code, line in program:
            decided = self._lines.get(code)
            if not decided:
                continue
            nearest = min(decided, key=lambda other: (abs(other - line), other > line))
            if abs(nearest - line) <= NEIGHBOUR:
                return max(decided[nearest], key=lambda phase: decided[nearest][phase])
        return None
