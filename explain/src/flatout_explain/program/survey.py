"""Facts about a process's functions and lines, from all that was seen of it.

Which functions learn, step environments or call networks; which loops and lines do; and where the
values of each line go. The rules of `flatout_explain.program.phase_rules` read them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flatout_explain.program import tags
from flatout_explain.program.codes import Leaf, Made
from flatout_explain.program.evidence import Process
from flatout_explain.program.flow import Node, Site, Values

Frames = tuple[tuple[int, int], ...]  # (code, line) of each frame, innermost first
Seen = tuple[Frames, Leaf]
Loop = tuple[int, int, int, tuple[Site, ...]]  # function, first and last line, callers

CALLERS = 2  # number of callers by which a line's calls of a network are distinguished

Networks = Mapping[tuple[Site, ...], bool | None]
"""By a line and some of its callers whether gradients were on when they called networks, from
windows; None if unknown."""

STEP, LEARN, NETWORK, DRAW, MESSAGE, WRITE = "env", "learn", "network", "draw", "ipc", "io"
COUNTED = (STEP, LEARN, NETWORK, DRAW, MESSAGE, WRITE)
"""Tags whose lines are noted."""


@dataclass(frozen=True)
class Place:
    """A stack, as the rules read it."""

    frames: Frames
    leaf: Leaf
    program: tuple[Site, ...]  # the program's frames
    # what the frames' code is: a phase, ``network``, ``compiled``, ``document``, ``draw``,
    # ``parameters`` (which depend on where their values go), or None
    tag: str | None


def chains(sites: Sequence[Site]) -> Iterator[tuple[Site, ...]]:
    """Yield each line with its callers, the longest chain first, from the innermost outwards."""
    for first in range(len(sites)):
        for length in range(CALLERS, -1, -1):
            if first + length < len(sites):
                yield tuple(sites[first : first + length + 1])


def program_of(process: Process) -> Callable[[Frames], list[Site]]:
    """Return a function that selects the program's frames of a stack."""
    codes = enumerate(process.codes)
    inside = {index for index, code in codes if tags.is_program(code, process.stdlib)}
    return lambda frames: [site for site in frames if site[0] in inside]


class Survey:
    """The work of a process's functions and lines.

    Attributes:
        places: all that was seen.
        values: where the values of the program's statements go.
        nodes: by tag, the statements whose own calls have it.
        lines: by tag, the lines of each function below which code with the tag was seen.
        updated: the statements that get what an update has made from it, not by way of acting.
        learned, observed, computed: the statements that get what an update has made, an
            environment's step, and a network, this one up to the objects that it changes.
        rewarded: those that get a reward, up to these, in programs without gradients.
        drawn, received: those that get rows drawn at random for an update, and messages.
    """

    def __init__(self, process: Process, networks: Networks, seen: Sequence[Seen]) -> None:
        self.process, self.networks = process, networks
        self.program = program_of(process)
        self._own = [tags.is_own(code, process.stdlib, process.folder) for code in process.codes]
        self._tags = [tags.frame_tag(code, process.stdlib) for code in process.codes]
        self._mark_environments(seen)
        self.stepping = {
            index for index, tag in enumerate(self._tags) if tag == "env" and self._steps(index)
        }
        self.places = [self.place(frames, leaf) for frames, leaf in seen]
        self.values = Values(process, {place.program for place in self.places})
        self.nodes: defaultdict[str, set[Node]] = defaultdict(set)
        self._goals: dict[tuple[tuple[Site, ...], tuple[str, ...]], str | None] = {}
        self.lines: dict[str, defaultdict[int, set[int]]] = {
            tag: defaultdict(set) for tag in COUNTED
        }
        for place in self.places:
            self._count(place)
        self._count_unpacked()
        self._count_backward()
        self.nodes[WRITE] -= self.nodes[LEARN] | self.nodes[NETWORK]  # such as a library's warning
        self.learned = self._reached(LEARN)
        away = self.nodes[STEP] | self.nodes[NETWORK] | self.nodes[LEARN]
        self.updated = self._reached(LEARN, away)
        self.observed = self._reached(STEP)
        self._changes = self.values.changes()
        self.computed = self._reached(NETWORK, self._changes)
        self.rewarded = self._reached_from_rewards()
        self.drawn = self._reached_from_draws()
        self.received = self._reached(MESSAGE)

    # --- Stacks -------------------------------------------------------------------------------

    def place(self, frames: Frames, leaf: Leaf) -> Place:
        """Return a stack with its program's frames and its tag."""
        program = tuple(self.program(frames))
        return Place(frames, leaf, program, self._tag_of(frames, leaf, program))

    def own_line(self, place: Place) -> Site | None:
        """Return the program's own line on a stack whose innermost line is a library's."""
        own = (site for site in place.program if self._own[site[0]])
        found = next(own, None)
        return None if place.program[:1] == (found,) else found

    def tag(self, index: int) -> str | None:
        """Return the tag of a function."""
        return self._tags[index]

    def learns(self) -> bool:
        """Return whether gradients were seen to be taken or applied."""
        return bool(self.lines[LEARN])

    def steps(self) -> bool:
        """Return whether environments were seen to step."""
        return bool(self.lines[STEP])

    def gradients(self, place: Place) -> bool | None:
        """Return whether gradients were on in a network's call, from counted calls; None if
        unknown."""
        chain = next((chain for chain in chains(place.program) if chain in self.networks), None)
        if chain is None:
            return None
        if len(chain) == 1 and self.values.shared(chain[0]):
            # Windows saw it for other callers: what this caller's line made says it.
            made = (self.process.values.get(site) for site in place.program[1 : CALLERS + 1])
            return next((one.grad for one in made if one is not None and one.grad is not None),
                        self.networks[chain])  # fmt: skip
        return self.networks[chain]

    def fetches(self, place: Place) -> bool:
        """Return whether a place asks JAX's device for a result."""
        inner = (self.process.codes[index] for index, _ in place.frames[:4])
        return place.leaf.word in tags.BLOCKS or any(map(tags.fetches, inner))

    def made(self, place: Place) -> tuple[Site, Made] | None:
        """Return line and compiled call whose result a place uses, if the probe found it."""
        for code, line in place.program[:2]:
            if (made := self.process.made.get((code, line))) is not None:
                return (code, made.line), made
        return None

    def unpacks_step(self, site: Site) -> bool:
        """Return whether a line unpacks an observation, a reward and the end of an episode."""
        values = self.process.values.get(site)
        return values is not None and tags.steps(values.kinds)

    def _steps(self, index: int) -> bool:
        """Return whether a function of an environment is its step."""
        code, kinds = self.process.codes[index], self.process.returns.get(index, "")
        return tags.steps(kinds) or (tags.is_env(code) and code.plain in ("step", "step_wait"))

    def _mark_environments(self, seen: Sequence[Seen]) -> None:
        """Mark as environments the functions that return a step's tuple, those that are called by
        lines which unpack one, and the other methods of their classes. A function that calls a
        network is a player, and none."""
        players, called = set[int](), set[int]()
        for frames, leaf in seen:
            plays = leaf.kind.get("compiled") and leaf.kind.get("learns")
            for at, (code, _) in enumerate(frames):
                if plays:
                    players.add(code)
                plays = plays or self._tags[code] in ("network", "optimise", "predict")
                if at and self.unpacks_step(frames[at]):
                    called.add(frames[at - 1][0])
        codes = self.process.codes
        stepping = {code for code, kinds in self.process.returns.items() if tags.steps(kinds)}
        stepping = {
            code
            for code in stepping | called
            if code not in players and tags.is_program(codes[code], self.process.stdlib)
        }
        classes = {codes[at].cls for at in stepping} - {None}
        for index, code in enumerate(codes):
            method = code.cls in classes and not code.plain.startswith("__")
            if self._tags[index] is None and index not in players and (index in stepping or method):
                self._tags[index] = "env"

    def _tags_of(self, frames: Frames) -> tuple[set[str | None], set[str | None]]:
        """Return the tags of frames in the program's innermost function, and of those around it.

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
        """Return whether an installed package is being imported: its modules may call functions.

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
        """Return whether JAX itself calls its copying function, as it does to check arguments."""
        codes = (self.process.codes[index] for index, _ in callers)
        caller = next((code for code in codes if code.plain not in tags.WRAPPERS), None)
        return caller is not None and tags.is_jax(caller)

    def _tag_of(self, frames: Frames, leaf: Leaf, program: Sequence[Site]) -> str | None:
        """Return the phase of a stack by its frames and leaf, or an undecided tag of `Place`."""
        inner, outer = self._tags_of(frames)
        both, compiled = inner | outer, leaf.kind.get("compiled")
        waits = tags.is_wait(leaf, self.process.codes[frames[0][0]])
        moves = program or leaf.word in tags.MOVES  # else it is a service thread
        alone = bool(program) and frames[0] == program[0]
        rules = (
            ("import", "import" in inner or self._imports_package(frames)),
            ("communicate", "communicate" in both or tags.is_collective(leaf)),
            ("eval", "evaluate" in both),
            ("network", "predict" in both),
            ("input", "input" in both),
            ("env", "ipc" in inner and waits and "env" in both),
            ("ipc", "ipc" in inner and not waits and moves),
            ("wait", "ipc" in inner),
            ("io", "io" in inner or tags.is_write(leaf)),
            ("document", "document" in inner),
            ("input", tags.is_read(leaf)),
            ("transfer", "copy" in inner and "env" not in both),
            ("env", "env" in both),
            ("env", alone and tags.is_c(leaf) and self.unpacks_step(program[0])),
            ("ipc", tags.receives(leaf) and not waits),
            ("wait", waits),
            ("learn", "optimise" in both or (compiled and leaf.kind.get("learns"))),
            ("network", "network" in both),
            ("parameters", "parameters" in inner),
            ("compiled", compiled),
            ("document", leaf.word in tags.PICKLES and tags.is_c(leaf)),
            ("draw", "draw" in inner or tags.is_draw(leaf)),
        )
        return next((tag for tag, holds in rules if holds), None)

    # --- Functions and lines ------------------------------------------------------------------

    def loops(self, program: Sequence[Site]) -> Iterator[tuple[Loop, int]]:
        """Yield the loops around a stack's lines, innermost first, with their frame's position."""
        for at, (code, line) in enumerate(program):
            for first, last in reversed(self.process.codes[code].loops):
                if first <= line <= last:
                    yield (code, first, last, tuple(program[at + 1 :])), at

    def does(self, loop: Loop, tag: str) -> bool:
        """Return whether something was seen below a line of a loop that runs for its callers."""
        code, first, last, callers = loop
        inside = (line for line in self.lines[tag].get(code, ()) if first <= line <= last)
        return any(self.values.runs(self.values.node((code, line)), callers) for line in inside)

    def turns_with(self, program: Sequence[Site], *tags: str) -> bool:
        """Return whether the innermost loop around a stack does one of these; also without one."""
        inner = next((loop for loop, _ in self.loops(program)), None)
        return inner is None or any(self.does(inner, tag) for tag in tags)

    def around(self, program: Sequence[Site]) -> tuple[bool, bool]:
        """Return whether environments step, and whether gradients are taken, in the innermost loop
        that does either."""
        for loop, _ in self.loops(program):
            steps, learns = self.does(loop, STEP), self.does(loop, LEARN)
            if steps or learns:
                return steps, learns
        return False, False

    def leads_to(self, program: Sequence[Site], *names: str) -> str | None:
        """Return the name, of some, that a stack's value reaches first; None if it reaches none."""
        key = (tuple(program), names)
        if key not in self._goals:
            targets = {name: self.nodes[name] for name in names}
            self._goals[key] = self.values.leads_to(program, targets)[0]
        return self._goals[key]

    def _count(self, place: Place) -> None:
        """Count a place for each function and each line of the program on its stack."""
        if any(self.tag(index) == "import" for index, _ in place.frames):
            return  # imports are not the functions' work
        tag, program = place.tag, place.program
        if self.fetches(place) and (made := self.made(place)) is not None and made[1].learns:
            tag, program = LEARN, (made[0], *program[1:])
        if tag not in COUNTED:
            return
        resets = tag == STEP and self.resets(place)
        outside = self.outside(program)
        for code, line in outside if not resets else ():
            self.lines[tag][code].add(line)
        begin = None if resets else self.values.start(outside)
        if begin is not None:  # around a comprehension, which has no statements of its own
            self.nodes[tag].add(begin[0])

    def outside(self, program: Sequence[Site]) -> Sequence[Site]:
        """Return the lines of a stack outside of environments and of what these call."""
        inner = [at for at, site in enumerate(program) if self.tag(site[0]) == STEP]
        return program[inner[-1] + 1 :] if inner else program

    def _count_unpacked(self) -> None:
        """Count lines that unpack a step's values, which may be too short to be sampled."""
        for site in self.process.values:
            if self.unpacks_step(site) and self.tag(site[0]) != STEP:
                node = self.values.node(site)
                if node is not None:
                    self.nodes[STEP].add(node)
                    self.lines[STEP][site[0]].add(site[1])

    def _count_backward(self) -> None:
        """Count lines that call a tensor's `backward`, or a compiled function that takes gradients,
        which may be too short to be sampled."""
        for site, learns in self.process.compiled.items():
            if learns and (node := self.values.node(site)) is not None:
                self.nodes[LEARN].add(node)
                self.lines[LEARN][site[0]].add(site[1])
        if "torch" not in self.process.libraries:
            return
        for number, code in enumerate(self.process.codes):
            for at, one in enumerate(code.flow.statements if code.flow is not None else ()):
                if any(call[0].rpartition(".")[2] == "backward" for call in one.calls):
                    node = (number, at)
                    if not self.values.calls_program(node):
                        self.nodes[LEARN].add(node)
                        self.lines[LEARN][number].add(one.first)

    def resets(self, place: Place) -> bool:
        """Return whether a place is in an environment's reset, which may follow an update."""
        codes = (self.process.codes[i] for i, _ in place.frames if self.tag(i) == STEP)
        return any(code.plain == "reset" for code in codes)

    def _reached(self, tag: str, barriers: Collection[Node] = ()) -> set[Node]:
        """Return the statements that values of lines with a tag reach, up to barriers."""
        found = set[Node]()
        for code, at in self.nodes[tag]:
            site = code, self.values.statement((code, at)).first
            found |= self.values.leads_to([site], {}, barriers=barriers)[1]
        return found

    def _reached_from_rewards(self) -> set[Node]:
        """Return the statements that rewards reach, up to those that change an object."""
        found = set[Node]()
        for site in self.process.values if not self.learns() else ():
            node = self.values.node(site)
            if node is None or not self.unpacks_step(site) or self.tag(site[0]) == STEP:
                continue
            reward = self.values.statement(node).made[1:2]
            found |= self.values.leads_to([site], {}, reward, self._changes)[1]
        return found

    def _reached_from_draws(self) -> set[Node]:
        """Return the statements through which randomly drawn rows get to learning, and those that
        store such rows.

        Where a library loads the batches, what the program draws is something else.
        """
        found = set[Node]()
        if any(place.tag == "input" for place in self.places):
            return found
        barriers = self.nodes[NETWORK] | self.nodes[LEARN]
        done = set[tuple[Site, ...]]()
        for place in self.places:
            if place.tag != DRAW or place.program in done:
                continue
            done.add(place.program)
            begin = self.values.start(place.program)
            if begin is None or not self._draws_rows(place, begin[0]):
                continue
            _, reached = self.values.leads_to(
                place.program, {}, barriers=barriers, only_named=barriers
            )
            found.update(node for node in reached - barriers if self._goes_to(node, barriers))
            found.add(begin[0])
        return found | self.values.storing(found)

    def _goes_to(self, node: Node, nodes: set[Node]) -> bool:
        """Return whether what a statement makes reaches one of some statements."""
        site = node[0], self.values.statement(node).first
        return self.values.leads_to([site], {"": nodes})[0] is not None

    def _draws_rows(self, place: Place, node: Node) -> bool:
        """Return whether a random draw chooses out of an object that exists longer than the loop
        around it, and its value gets to learning, not to an environment."""
        names = {place.leaf.word} | {self.process.codes[code].plain for code, _ in place.frames[:3]}
        if names.isdisjoint(tags.DRAWS) and not self.steps():
            return False
        goal = self.leads_to(place.program, STEP, LEARN, NETWORK)
        return goal in (LEARN, NETWORK) and self.values.chooses(node)
