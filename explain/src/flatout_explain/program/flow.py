"""Where the values of a program's statements go.

The probe notes for each statement which names it makes and uses. With the calls that were seen on
stacks these are a graph: a value goes to the statements that use its name, into the functions that
it is passed to, back to the caller that it is returned to, and by an object's attributes to the
methods of its class. Where a value goes says what the code that made it is for, whatever it is
called.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from flatout_explain.program.codes import RETURNED, Code, Flow, Statement
from flatout_explain.program.evidence import Process

Site = tuple[int, int]  # (code, line) of the program
Node = tuple[int, int]  # (code, position of the statement)
Callers = tuple[Site, ...] | None  # of a function, innermost first; None where any caller counts

MOST = 4000  # steps of one search
DEEPEST = 8  # functions into which a value is followed
MODULE = -1  # instead of a function, of variables


class Values:
    """The ways of the values of one process.

    Args:
        stacks: of the program's frames, innermost first.
    """

    def __init__(self, process: Process, stacks: Iterable[Sequence[Site]]) -> None:
        self._codes = process.codes
        self._nodes: dict[Site, Node | None] = {}
        self._owners: dict[tuple[int, str], int] = {}
        self._local: dict[tuple[Node, str], list[tuple[int, list[str]]]] = {}
        self._called: defaultdict[Site, set[int]] = defaultdict(set)
        self._callers: defaultdict[int, set[Site]] = defaultdict(set)
        # blocks of a function that were seen to run: for its callers, and ever
        self._ran: defaultdict[tuple[int, Callers], set[int]] = defaultdict(set)
        self._ever: defaultdict[int, set[int]] = defaultdict(set)
        seen = [tuple(sites) for sites in stacks]
        for sites in seen:
            for (callee, _), caller in pairwise(sites):
                self._called[caller].add(callee)
                self._callers[callee].add(caller)
        self._methods: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._of_file: defaultdict[str, set[int]] = defaultdict(set)
        for number, code in enumerate(self._codes):
            if code.flow is None:
                continue
            self._of_file[code.file].add(number)
            if code.cls is not None:
                self._methods[code.cls].add(number)
        for sites in seen:
            self._note_blocks(sites)

    def node(self, site: Site) -> Node | None:
        """Return the innermost statement of a line."""
        if site not in self._nodes:
            self._nodes[site] = self._node(site)
        return self._nodes[site]

    def _node(self, site: Site) -> Node | None:
        code, line = site
        flow = self._codes[code].flow
        found = None
        for at, one in enumerate(flow.statements if flow is not None else ()):
            if one.first <= line <= one.last and (
                found is None or _length(one) <= _length(self.statement((code, found)))
            ):
                found = at
        return None if found is None else (code, found)

    def statement(self, node: Node) -> Statement:
        """Return the statement of a node."""
        return self._flow(node[0]).statements[node[1]]

    def _note_blocks(self, sites: tuple[Site, ...]) -> None:
        for at, site in enumerate(sites):
            if (node := self.node(site)) is not None:
                flow, block = self._flow(site[0]), self.statement(node).block
                while block != -1:
                    self._ran[site[0], sites[at + 1 :]].add(block)
                    self._ever[site[0]].add(block)
                    block = flow.blocks[block]

    def changes(self) -> set[Node]:
        """Return the statements that change an object."""
        return {
            (number, at)
            for number in range(len(self._codes))
            for at, one in enumerate(self._flow(number).statements)
            if not one.used.isdisjoint(one.made)
        }

    def keeps(self, node: Node) -> bool:
        """Return whether a statement changes an object that its function was given, or a variable
        of others: where that gets to may not be seen."""
        statement = self.statement(node)
        own = self._assigned(node[0]).difference(self._flow(node[0]).args)
        changed = (name.partition(".")[0] for name in statement.made if name in statement.used)
        return any(root not in own for root in changed if root != RETURNED)

    def runs(self, node: Node | None, callers: Callers) -> bool:
        """Return whether a statement may run for these callers: if not, its block was seen to run
        for others alone, as ``if training:`` does in a function that also evaluates."""
        if node is None or not callers or (node[0], callers) not in self._ran:
            return True
        block = self.statement(node).block
        return block in self._ran[node[0], callers] or block not in self._ever[node[0]]

    def calls_program(self, node: Node) -> bool:
        """Return whether a statement was seen to call another function of the program."""
        one = self.statement(node)
        return any((node[0], line) in self._called for line in range(one.first, one.last + 1))

    def shared(self, site: Site) -> bool:
        """Return whether several lines of the program were seen to call a line's function."""
        return len(self._callers[site[0]]) > 1

    def start(self, sites: Sequence[Site]) -> tuple[Node, Callers] | None:
        """Return the innermost statement of a stack that is known, with its callers."""
        for at, site in enumerate(sites):
            if (node := self.node(site)) is not None:
                return node, tuple(sites[at + 1 :])
        return None

    def leads_to(
        self,
        sites: Sequence[Site],
        targets: Mapping[str, Collection[Node]],
        names: Collection[str] | None = None,
        barriers: Collection[Node] = (),
        only_named: Collection[Node] = (),
    ) -> tuple[str | None, set[Node]]:
        """Follow the value that the innermost line of a stack makes, by the shortest way.

        Args:
            sites: the stack, innermost line first.
            targets: by name; the first one that is reached ends the search, of several at the same
                distance the one that is named first.
            names: of the values to follow, if not all that the statement makes.
            barriers: statements whose values are not followed.
            only_named: statements that pass the value on only by its name. What their calls get
                without one, such as another call's result, is something else.

        Returns:
            The name of the target, None if none is reached; and the statements that the value went
            through.
        """
        begin = self.start(sites)
        if begin is None:
            return None, set()
        node, callers = begin
        made = self.statement(node).made if names is None else tuple(names)
        level = list(self._users(node, made, callers, only_named))
        seen = set[tuple[Node, Callers]]()
        found = set[Node]()
        while level and len(seen) < MOST:
            level = [step for step in dict.fromkeys(level) if step not in seen]
            seen.update(level)
            found.update(node for node, _ in level)
            for name, nodes in targets.items():
                if any(node in nodes for node, _ in level):
                    return name, found
            level = [
                user
                for node, callers in level
                if node not in barriers
                for user in self._users(node, self.statement(node).made, callers, only_named)
            ]
        return None, found

    def chooses(self, node: Node) -> bool:
        """Return whether a statement, or one that uses its value, uses an object which the
        innermost loop around it does not make: then rows are drawn out of something that lasts."""
        code = node[0]
        flow, line = self._flow(code), self.statement(node).first
        around = [loop for loop in self._codes[code].loops if loop[0] <= line <= loop[1]]
        first, last = around[-1] if around else (line, line)
        inside = {
            name
            for one in flow.statements
            if first <= one.first <= last
            for name in one.made
            if name not in one.used
        }
        users = {place for place, _ in self._users(node, self.statement(node).made, ())}
        for one in {node, *(user for user in users if user[0] == code)}:
            statement = self.statement(one)
            functions = {call[0] for call in statement.calls}
            own = self.calls_program(one) and any("." in name for name in functions)
            new = {*inside, *statement.made, *self.statement(node).made}
            lasting = (
                name
                for name in statement.used - functions
                if not any(_linked(made, name) for made in new)
            )
            if own or any(lasting):
                return True
        return False

    def storing(self, nodes: Collection[Node]) -> set[Node]:
        """Return the statements that store what some statements take out of objects: those of
        methods that change an attribute which these use, and lines of their function that change an
        object."""
        found = set[Node]()
        for code in {code for code, _ in nodes}:
            used = {name for one in nodes if one[0] == code for name in self.statement(one).used}
            cls = self._codes[code].cls
            attributes = {name for name in used if name.startswith("self.")}
            for other in {code} | (self._methods[cls] if cls is not None else set()):
                if self._codes[other].plain == "__init__":
                    continue
                for at, one in enumerate(self._flow(other).statements):
                    changed = [name for name in one.made if name in one.used]
                    names = used if other == code else attributes
                    if any(_linked(name, use) for name in changed for use in names):
                        found.add((other, at))
        return found

    def _users(
        self, node: Node, made: Iterable[str], callers: Callers, only_named: Collection[Node] = ()
    ) -> Iterator[tuple[Node, Callers]]:
        """Yield the statements that use values which a statement made."""
        waiting = [(node, name, callers) for name in made]
        done = set[tuple[Node, str, Callers]]()
        while waiting:
            one = waiting.pop(0)
            if one in done:  # functions that call each other
                continue
            done.add(one)
            (code, at), name, outer = one
            if name == RETURNED:
                yield from self._returned(code, outer)
                continue
            for other, used in self._here((code, at), name):
                if self.runs((code, other), outer):
                    yield (code, other), outer
                    named = (code, other) in only_named
                    yield from self._passed((code, other), used, outer, named)
            yield from self._elsewhere(code, name)
            flow = self._flow(code)
            if name in flow.args and name in flow.statements[at].used:
                waiting += self._changed(code, name, outer)

    def _here(self, node: Node, name: str) -> list[tuple[int, list[str]]]:
        """Return the statements of the same function that use what a statement made under a name,
        with the names by which they do."""
        if (node, name) not in self._local:
            code, at = node
            found = [
                (other, used)
                for other, one in enumerate(self._flow(code).statements)
                if (used := [use for use in one.used if _linked(name, use)])
                and self._arrives(code, at, other, name)
            ]
            self._local[node, name] = found
        return self._local[node, name]

    def _returned(self, code: int, callers: Callers) -> Iterator[tuple[Node, Callers]]:
        """Yield the caller's statement, which gets what a function returns."""
        known = self._callers[code] if not callers else callers[:1]
        for site in known:
            if (node := self.node(site)) is not None:
                yield node, callers[1:] if callers else None
            elif callers and len(callers) > 1:  # a comprehension, of which nothing is known
                yield from self._returned(site[0], callers[1:])

    def _passed(
        self, node: Node, used: Collection[str], callers: Callers, named: bool
    ) -> Iterator[tuple[Node, Callers]]:
        """Yield the statements of called functions that use an argument."""
        if callers is not None and len(callers) > DEEPEST:
            return
        statement = self.statement(node)
        for line in range(statement.first, statement.last + 1):
            for callee in self._called.get((node[0], line), ()):
                flow = self._codes[callee].flow
                if flow is None:
                    continue
                site = (node[0], line)
                outer = (site,) if callers is None else (site, *callers)
                args = _parameters(self._codes[callee], flow, statement, used, named)
                for at, one in enumerate(flow.statements):
                    if any(_linked(name, use) for use in one.used for name in args):
                        yield (callee, at), outer

    def _changed(
        self, code: int, name: str, callers: Callers
    ) -> Iterator[tuple[Node, str, Callers]]:
        """Yield the names, in the callers' statements, of an object that a function has got as an
        argument and changed."""
        place = self._flow(code).args.index(name)
        for site in self._callers[code] if not callers else callers[:1]:
            if (node := self.node(site)) is None:
                continue
            statement = self.statement(node)
            calls = list(_arguments(self._codes[code], statement))
            last = len(self._flow(code).args)
            rest = {len(names) > last for names in calls} == {True}  # it has ``*args``
            given = {name for names in calls for name in names[place : None if rest else place + 1]}
            given.discard("")
            for passed in given or statement.used:  # as *args, say
                yield node, passed, callers[1:] if callers else None

    def _elsewhere(self, code: int, name: str) -> Iterator[tuple[Node, Callers]]:
        """Yield the statements of other functions that use an attribute of the same object, or the
        same variable of the module or of a function around both."""
        cls, root = self._codes[code].cls, name.partition(".")[0]
        if name.startswith("self.") and cls is not None:
            others = self._methods[cls]
        else:
            file, owner = self._of_file[self._codes[code].file], self._owner(code, root)
            others = {other for other in file if self._owner(other, root) == owner}
        for other in others - {code}:
            for at, one in enumerate(self._flow(other).statements):
                if any(_linked(name, use) for use in one.used):
                    yield (other, at), None

    def _owner(self, code: int, name: str) -> int:
        """Return the function that owns a variable which a function uses, or `MODULE`."""
        if (code, name) not in self._owners:
            around = code
            while around != MODULE and not self._owns(around, name):
                outer, _, inner = self._codes[around].qualname.rpartition(".<locals>.")
                same = self._of_file[self._codes[code].file] if inner else ()
                found = (at for at in same if _name(self._codes[at]) == outer)
                around = next(found, MODULE)
            self._owners[code, name] = around
        return self._owners[code, name]

    def _owns(self, code: int, name: str) -> bool:
        own = name in self._assigned(code) or name in self._flow(code).args
        return own and self._codes[code].plain != "<module>"

    def _assigned(self, code: int) -> set[str]:
        """Return the variables that a function assigns. What it only changes, as
        ``rows.append(row)`` does, is of another one."""
        statements = self._flow(code).statements
        made = {name for one in statements for name in one.made if name not in one.used}
        return {name for name in made if "." not in name}

    def _arrives(self, code: int, one: int, other: int, name: str) -> bool:
        """Return whether a value that a statement made under a name may still exist when another
        statement uses it, in the same turn of the loops around both or in the next."""
        flow = self._flow(code)
        makers = [at for at, each in enumerate(flow.statements) if name in each.made]
        first, second = flow.statements[one], flow.statements[other]

        def before(at: int) -> bool:  # whenever `other` runs
            return at < other and flow.encloses(flow.statements[at].block, second.block)

        if other > one and not any(one < at and before(at) for at in makers):
            return True
        for begin, end in self._codes[code].loops:
            if not (begin <= first.first <= end and begin <= second.first <= end):
                continue
            inside = [at for at in makers if begin <= flow.statements[at].first <= end]
            after = (at > one and flow.encloses(flow.statements[at].block, first.block)
                     for at in inside)  # fmt: skip
            if not any(map(before, inside)) and not any(after):
                return True
        return False

    def _flow(self, code: int) -> Flow:
        flow = self._codes[code].flow
        return Flow((), ()) if flow is None else flow


def _name(code: Code) -> str:
    return code.qualname or code.plain


def _length(statement: Statement) -> int:
    return statement.last - statement.first


def _linked(made: str, used: str) -> bool:
    """Return whether a used name holds a value that was made under another name: the same name, or
    an attribute of it."""
    if made == used:
        return True
    return made != "self" and (used.startswith(made + ".") or made.startswith(used + "."))


def _arguments(code: Code, statement: Statement) -> Iterator[tuple[str, ...]]:
    """Yield the names that the calls of a statement pass to a function, by its parameters."""
    for function, *given in statement.calls:
        if code.plain in (function.rpartition(".")[2], "__init__", "__call__", "forward"):
            yield ("", *given) if code.cls is not None else tuple(given)


def _parameters(
    code: Code, flow: Flow, statement: Statement, used: Collection[str], named: bool
) -> Collection[str]:
    """Return the parameters that get one of some values; all where the call itself is not found,
    or gets something that has no name, unless only what is `named` counts."""
    calls = list(_arguments(code, statement))
    if not calls:
        return flow.args
    if any(len(given) > len(flow.args) or (not named and "" in given[1:]) for given in calls):
        return flow.args  # something that is no name, or *args
    return {
        parameter
        for given in calls
        for parameter, name in zip(flow.args, given, strict=False)
        if name in used
    } | ({"self"} if code.cls is not None and any("." in name for name in used) else set())
