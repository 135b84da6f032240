"""Descriptions of a program's codes, places, stacks and threads, each written once."""

from functools import partial

import _flatout_describe as read
import _flatout_source as source
from _flatout_flight import pending
from _flatout_flow import Search, described_flow, flow_of, is_given, known_values
from _flatout_gradients import class_learns, described, uses_gradients
from _flatout_locals import local_of
from _flatout_marks import Marks
from _flatout_own import __builtins__, source_line, sys  # noqa: F401
from _flatout_window import kind_of

MAX_DEPTH = 100
MAX_STACKS = 20000
MAX_LEAVES = 4000
GENERATOR = 0x20  # flag of a code
TRIES = 12  # samples in which a line's values, and a function's calls, are looked for


class Known:
    """A code that was met. It is kept, so that no id of a code is used twice."""

    def __init__(self, index, code):
        self.index, self.code = index, code
        self.compiles = read.is_compiling(code.co_filename, code.co_name)
        self.users = source.is_users(code.co_filename)
        self.kind = None  # where windows note what it is given
        self.returned = None  # kinds of what it was seen to return
        self.marks = None  # while some of them are not known
        self.tries = TRIES  # how often to look for compiled calls
        self.valued = None  # line -> (how often to look for its values, its statement)


class Seen:
    """Numbers for what samples meet; the line that describes a number goes out with it."""

    def __init__(self, line):
        self.line = line  # takes a row of the output
        self.codes = {}  # id -> what is known of a code
        self.by_index = []
        self.later = []  # codes and their rows, whose source could not be read yet
        self.leaves = set()
        self.sites = {}  # (code, line) -> whether it uses what its function was given
        self.stacks = {}
        self.lanes = {}
        self.learned = {}  # what learning calls make, by function and by class
        self.held = {}  # thread -> (outermost frame that compiles, its number)
        self.compilations = 0
        self.depth = 0  # frames of the last stack
        self.ready = False  # whether the program's imports are over
        self.hidden = ()  # ids of codes that count calls: no part of the program's stacks

    def known(self, frame):
        """Return what is known of a frame's code."""
        return self.codes.get(id(frame.f_code)) or self.code(frame.f_code, frame)

    def index_of(self, code):
        """Return the number of a code; one that was not seen yet is described."""
        return (self.codes.get(id(code)) or self.code(code, None)).index

    def walk(self, thread, frame):
        """Return (number of the stack, number of its compilation or 0, its codes' numbers)."""
        key, users, compiling, strict, depth = [], [], None, False, 0
        frame = leaf = self.unhidden(frame)
        while frame is not None:
            known = self.known(frame)
            if known.users:
                users.append((known, frame))
            if known.marks is not None:
                self.marks(known, frame)
            if known.compiles:
                strict = strict or known.compiles == 2
                compiling = frame  # the outermost: one for each compilation
            if depth < MAX_DEPTH:
                key += known.index, frame.f_lasti
            depth += 1
            frame = self.unhidden(frame.f_back)
        self.depth, number = depth, 0
        if strict:
            held = self.held.get(thread)
            if held is None or held[0] is not compiling:
                self.compilations += 1
                held = self.held[thread] = (compiling, self.compilations)
            number = held[1]
        elif thread in self.held:
            del self.held[thread]
        place = (key[0], key[1])
        if place not in self.leaves and len(self.leaves) < MAX_LEAVES:
            self.leaves.add(place)
            self.leaf(leaf, place)
        if users:
            self.site(users[0][1])
        for known, frame in users if self.ready else ():
            self.values(known, frame)
        return self.stack(tuple(key)), number, key[::2]

    def unhidden(self, frame):
        """Return a frame, or the first of the program's own that called it."""
        while frame is not None and id(frame.f_code) in self.hidden:
            frame = frame.f_back
        return frame

    def marks(self, known, frame):
        """Describe the lines of a code that the program itself marks as a phase."""
        try:
            spans = known.marks.look(frame, read.line_of(known.code, frame.f_lasti))
            if not known.marks.open:
                known.marks = None
        except Exception:
            known.marks = spans = None
        if spans is not None:
            self.line({"k": "marks", "c": known.index, "spans": spans})

    def values(self, known, frame):
        """Look at what lines of a running function made the last time, each up to `TRIES` times:
        the line that runs, and those that unpack values, which may be too short to be sampled. And
        at its first and last sample, because it takes a while, which lines call compiled functions.
        """
        line, known.tries = read.line_of(known.code, frame.f_lasti), known.tries - 1
        try:
            flow = flow_of(known.code)
            if known.valued is None:
                short = [one for one in flow.statements if one.unpacks and None not in one.values]
                known.valued = {one.first: (TRIES, one) for one in short}
            if line not in known.valued:
                known.valued[line] = TRIES, flow.at(line)
            for line, (tries, statement) in known.valued.items():
                if tries and statement is not None:
                    known.valued[line] = 0, statement  # also where an error follows
                    found = known_values(frame, statement)
                    if found is None:
                        known.valued[line] = tries - 1, statement
                    elif found:
                        self.line({"k": "values", "c": known.index, "line": line, **found})
            if compiles() and known.tries in (TRIES - 1, 0):
                lines = Search(known.code, partial(read.resolve, frame)).compiled()
                for line, learns in lines.items():
                    self.line({"k": "compiled", "c": known.index, "line": line, "learns": learns})
        except Exception:
            pass

    def learning_in_flight(self, frame):
        """Return [code, line] of a learning call that JAX's device still computes; else an empty
        list."""
        try:
            found = pending(frame, self.learned)
        except Exception:
            return []
        if found is None:
            return []
        code, line = found
        known = self.codes.get(id(code)) or self.code(code, None)
        row = self.site_row(known, line)
        if row is not None:
            self.line(row)
        return [known.index, line]

    def site_row(self, known, line):
        """Describe a line of a code; None if it has been described."""
        if (known.index, line) in self.sites or len(self.sites) >= MAX_LEAVES:
            return None
        self.sites[known.index, line] = False
        text = source_line(known.code.co_filename, line).strip()[:100]
        return {"k": "site", "c": known.index, "line": line, "text": text}

    def stack(self, key):
        """Return the number of a stack, (code, instruction, code, instruction, ...), innermost
        first."""
        if key not in self.stacks and len(self.stacks) >= MAX_STACKS:
            key = key[:2]
        index = self.stacks.get(key)
        if index is None:
            index = self.stacks[key] = len(self.stacks)
            self.line({"k": "stack", "i": index, "at": key[1], "f": self.lined(key)})
        return index

    def lane(self, thread, main):
        """Return the number of a thread."""
        if thread not in self.lanes:
            lane = self.lanes[thread] = len(self.lanes)
            name = read.thread_attribute(thread, "_name")
            self.line({"k": "lane", "i": lane, "main": main, "name": name})
        return self.lanes[thread]

    def lined(self, stack):
        """Return the stack as [code, line, ...], innermost first."""
        pairs = zip(stack[::2], stack[1::2])
        lines = [(index, read.line_of(self.by_index[index].code, at)) for index, at in pairs]
        return [number for pair in lines for number in pair]

    def code(self, code, frame):
        """Describe a code object that is seen for the first time."""
        file, name = code.co_filename, code.co_name
        known = self.codes[id(code)] = Known(len(self.by_index), code)
        self.by_index.append(known)
        row = {"k": "code", "i": known.index, "file": file, "plain": name,
               "line": code.co_firstlineno, "learns": uses_gradients(code)}  # fmt: skip
        if getattr(code, "co_qualname", name) != name:  # from Python 3.11 on
            row["qualname"] = code.co_qualname
        if known.users and code.co_flags & GENERATOR:
            row["yields"] = True
        if known.users:
            self.from_source(known, row)
        if frame is not None and code.co_argcount and code.co_varnames:
            try:
                row["self"] = class_of(local_of(frame, code.co_varnames[0]), name)
                known.kind = kind_of(file, name, row["self"])
            except Exception:
                pass
        self.line(row)
        return known

    def from_source(self, known, row):
        """Describe what the source of a code says of it; in a garbage collection it is not read."""
        try:
            row["loops"] = source.loops_of(known.code)
            marks = Marks(known.code)
            known.marks = marks if marks.open else None
            row["flow"] = described_flow(known.code)
        except read.CollectingError:
            self.later.append((known, row))
        except Exception:
            pass

    def catch_up(self):
        """Describe again what was first seen within a garbage collection."""
        later, self.later = self.later, []
        for known, row in later:
            self.from_source(known, row)
            self.line(row)

    def leaf(self, frame, place):
        """Describe the call that the innermost frame executes: its text and the called object."""
        try:
            text, call = read.text_at(frame.f_code, frame.f_lasti)
            row = {"k": "leaf", "c": place[0], "at": place[1], "text": text, "call": call}
            found = read.resolve(frame, call) if call else None
            if found is not None:
                row["kind"] = described(found)
            self.line(row)
        except Exception:
            pass

    def site(self, frame):
        """Describe what the user's innermost line was executing, and which compiled call made the
        values that it may wait for; if that is an argument of its function, its caller's, too."""
        for _ in range(2):
            if frame is None or not self.known(frame).users:
                return
            known, line = self.known(frame), read.line_of(frame.f_code, frame.f_lasti)
            row = self.site_row(known, line)
            if row is not None:
                try:
                    if compiles():
                        made = Search(known.code, partial(read.resolve, frame)).origin(line)
                        row.update({} if made is None else {"made": made})
                        self.sites[known.index, line] = made is None and is_given(known.code, line)
                except Exception:
                    pass
                self.line(row)
            if not self.sites.get((known.index, line)):
                return
            frame = self.unhidden(frame.f_back)


def compiles():
    """Return whether the program uses a library whose compiled functions are objects."""
    return "jax" in sys.modules or "tensorflow" in sys.modules


def class_of(owner, method):
    """Describe an object's class: name, module, roots of its bases, attributes."""
    kind = type(owner)
    if owner is None or issubclass(kind, (int, float, str, bytes, list, tuple, dict)):
        return None
    cls = owner if issubclass(kind, type) else kind
    if not read.offers(cls, method):
        return None  # a function that is given one, not its method
    order = read.order_of(cls)
    return {
        "name": read.name_of(cls), "module": read.module_of(cls),
        "bases": [read.rooted(base) for base in order[:-1]][:12],
        "learns": any(map(class_learns, order)),
    }  # fmt: skip
