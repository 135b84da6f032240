"""Descriptions of a program's codes, places, stacks and threads, each written once."""

import _flatout_describe as read
import _flatout_source as source
from _flatout_flow import compiled_calls, flow_of, kinds_of, known_values, names_at, unpacking
from _flatout_gradients import class_learns, described, uses_gradients
from _flatout_locals import local_of
from _flatout_marks import Marks
from _flatout_own import __builtins__, source_line, sys  # noqa: F401
from _flatout_window import kind_of

MAX_DEPTH = 100
MAX_STACKS = 20000
MAX_LEAVES = 4000
TRIES = 12  # samples in which a line's values, and a function's calls, are looked for


class Seen:
    """Numbers for what samples meet; the line that describes a number goes out with it."""

    def __init__(self, line):
        self.line = line  # takes a row of the output
        self.codes = {}  # id -> (index, code, compiles): kept, so that no id is used twice
        self.by_index = []
        self.special = {}  # id of a code -> its kind, where windows note what it is given
        self.leaves = set()
        self.sites = {}  # (code, line) -> whether it uses what its function was given
        self.valued = {}  # (code, line) -> (how often to look for its values, what it names)
        # number of a code -> (how often to look around in it, lines to look at, lines found)
        self.looking = {}
        self.gradients = {}  # stack -> [whether PyTorch's gradients were ever off, ever on]
        self.stacks = {}
        self.lanes = {}
        self.marking = {}  # id of a code -> its marks, while some of them are not known
        self.learned = {}  # id of a code -> (code, names that it assigns from learning calls)
        self.held = {}  # thread -> (outermost frame that compiles, its number)
        self.compilations = 0
        self.depth = 0  # frames of the last stack
        self.ready = False  # whether the program's imports are over
        self.hidden = ()  # ids of codes that count calls: no part of the program's stacks

    def walk(self, thread, frame):
        """(number of the stack, number of its compilation or 0, its codes' numbers)."""
        key, leaf, users, scope, strict, depth = [], frame, None, None, None, 0
        while frame is not None:
            code = frame.f_code
            if id(code) in self.hidden:
                frame = frame.f_back
                continue
            known = self.codes.get(id(code)) or self.code(code, frame)
            if users is None and known[3]:
                users = frame
            if id(code) in self.marking:
                self.marks(known[0], code, frame)
            if known[2] == 2:
                strict = frame
            elif known[2]:
                scope = frame
            if depth < MAX_DEPTH:
                key.append(known[0])
                key.append(frame.f_lasti)
            depth += 1
            frame = frame.f_back
        self.depth, number = depth, 0
        if strict is not None:
            compiling = scope or strict  # the outermost: one for each compilation
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
        if users is not None:
            self.site(users)
            if self.ready:
                self.values(users)
        return self.stack(tuple(key)), number, key[::2]

    def marks(self, number, code, frame):
        """Describe the lines of a code that the program itself marks as a phase."""
        try:
            marks = self.marking[id(code)]
            spans = marks.look(frame, read.line_of(code, frame.f_lasti))
            if not marks.open:
                del self.marking[id(code)]
        except Exception:
            del self.marking[id(code)]
            return
        if spans is not None:
            self.line({"k": "marks", "c": number, "spans": spans})

    def values(self, frame):
        """Look at what the lines of the user's that are running made the last time."""
        while frame is not None:
            known = self.codes.get(id(frame.f_code))
            if known is not None and known[3]:
                if known[0] in self.looking:
                    self.look_around(frame, known[0])
                place = known[0], read.line_of(frame.f_code, frame.f_lasti)
                tries, names = self.valued.get(place, (TRIES, None))
                if tries:
                    self.value(frame, place, tries, names)
            frame = frame.f_back

    def look_around(self, frame, number):
        """Look at the lines of a function that unpack values or call compiled functions, which may
        be too short to be sampled, at its first samples."""
        tries, lines, called = self.looking[number]
        try:
            lines = unpacking(frame.f_code) if lines is None else lines
            for line, names in list(lines.items()):
                values = [read.resolve(frame, name) for name in names]
                if any(value is not None for value in values):
                    del lines[line]
                    self.valued[number, line] = 0, None
                    kinds = kinds_of(values)
                    self.line({"k": "values", "c": number, "line": line, "kinds": kinds})
            if "jax" in sys.modules and tries in (TRIES, 1):  # it takes a while
                for line, learns in compiled_calls(frame).items():
                    if line not in called:
                        called.add(line)
                        self.line({"k": "compiled", "c": number, "line": line, "learns": learns})
        except Exception:
            tries = 1
        self.looking[number] = tries - 1, lines, called
        if tries <= 1:
            del self.looking[number]

    def value(self, frame, place, tries, names):
        """Look at what one line made, up to `TRIES` times."""
        try:
            names = names or names_at(frame.f_code, place[1])
            found = known_values(frame, names)
        except Exception:
            found = {}
        self.valued[place] = (tries - 1 if found is None else 0), names
        if found:
            self.line({"k": "values", "c": place[0], "line": place[1], **found})

    def has_gradients(self, stack, enabled):
        """Note whether PyTorch's gradients were on at a stack."""
        seen = self.gradients.setdefault(stack, [False, False])
        if not seen[enabled]:
            seen[enabled] = True
            self.line({"k": "gradients", "s": stack, "on": enabled})

    def unhidden(self, frame):
        """A frame, or the first of the program's own that called it."""
        while frame is not None and id(frame.f_code) in self.hidden:
            frame = frame.f_back
        return frame

    def learning_in_flight(self, frame):
        """[code, line] of a learning call that JAX's device still computes; else an empty list."""
        try:
            found = source.pending(frame, self.learned)
        except Exception:
            return []
        if found is None:
            return []
        code, line = found
        number = (self.codes.get(id(code)) or self.code(code, None))[0]
        row = self.site_row(number, line, code)
        if row is not None:
            self.line(row)
        return [number, line]

    def site_row(self, number, line, code):
        """Describe a line of a code; None if it has been described."""
        if (number, line) in self.sites or len(self.sites) >= MAX_LEAVES:
            return None
        self.sites[number, line] = False
        text = source_line(code.co_filename, line).strip()[:100]
        return {"k": "site", "c": number, "line": line, "text": text}

    def stack(self, key):
        """The number of a stack, (code, instruction, code, instruction, ...), innermost first."""
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
        """The stack as [code, line, ...], innermost first."""
        pairs = zip(stack[::2], stack[1::2])
        lines = [(index, read.line_of(self.by_index[index], at)) for index, at in pairs]
        return [number for pair in lines for number in pair]

    def code(self, code, frame):
        """Describe a code object that is seen for the first time: (index, code, compiles)."""
        index = len(self.by_index)
        self.by_index.append(code)
        file = code.co_filename
        users = source.is_users(file)
        entry = (index, code, read.is_compiling(file, code.co_name), users)
        self.codes[id(code)] = entry
        row = {"k": "code", "i": index, "file": file, "plain": code.co_name,
               "line": code.co_firstlineno, "learns": uses_gradients(code)}  # fmt: skip
        if getattr(code, "co_qualname", code.co_name) != code.co_name:  # from Python 3.11 on
            row["qualname"] = code.co_qualname
        if users:
            try:
                row["loops"] = source.loops_of(code)
                marks = Marks(code)
                if marks.open:
                    self.marking[id(code)] = marks
                row["flow"] = flow_of(code)
                self.looking[index] = TRIES, None, set()
            except Exception:
                pass
        if frame is not None and code.co_argcount and code.co_varnames:
            try:
                owner = local_of(frame, code.co_varnames[0])
                row["self"] = class_of(owner, code.co_name)
                kind = kind_of(file, code.co_name, row["self"])
                if kind:
                    self.special[id(code)] = kind
            except Exception:
                pass
        self.line(row)
        return entry

    def leaf(self, frame, place):
        """Describe what the innermost frame was executing: the call's text, what is called."""
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
        """Describe what the user's innermost line was executing, and if that waits for an argument
        of its function, also its caller's line."""
        caller = self.unhidden(frame.f_back)
        if self.note(frame) and caller is not None and source.is_users(caller.f_code.co_filename):
            if id(caller.f_code) not in self.codes:
                self.code(caller.f_code, caller)
            self.note(caller)

    def note(self, frame):
        """Describe what a line of the user's was executing, once for each such place, and for
        calls that may wait for a device, which call made the values that it waits for.

        Whether the line uses an argument instead.
        """
        code, line = frame.f_code, read.line_of(frame.f_code, frame.f_lasti)
        place = (self.codes[id(code)][0], line)
        row = self.site_row(*place, code)
        if row is None:
            return self.sites.get(place, False)
        try:
            _, call = read.text_at(code, frame.f_lasti)
            if "jax" in sys.modules or (call or "").rpartition(".")[2] in source.FETCHES:
                made = source.origin(frame, line)
                if made is not None:
                    row["made"] = made
                else:
                    self.sites[place] = source.is_given(code, line)
            self.line(row)
        except Exception:
            pass
        return self.sites[place]


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
