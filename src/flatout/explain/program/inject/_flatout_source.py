"""Parses a function's source code: its loops, and the call that a value comes from."""

from functools import partial

import _flatout_describe as read
from _flatout_gradients import described, globals_of, is_compiled
from _flatout_locals import local_of
from _flatout_own import STDLIB, __builtins__, source_lines  # noqa: F401

ast = read.ast
MOST_LINES = 8000  # files with more lines are not parsed: that would hold up the program
BLOCKS = "body", "handlers", "cases", "orelse", "finalbody"  # fields that hold statements, in order
CLOSING = 8  # maximum number of lines with closing brackets at the end of a function
CALLERS = 12  # frames in which results of learning are looked for
DEPTH = 4  # assignments that are followed back from a value to the call that made it

LIBRARIES = (
    "jax", "jaxlib", "torch", "numpy", "scipy", "optax", "flax", "equinox", "haiku", "chex",
    "tensorflow", "keras", "gymnasium", "gym", "ale_py",
)  # fmt: skip
"""Installed packages whose lines are not the user's."""

FETCHES = {
    "float", "int", "bool", "complex", "asarray", "array", "print", "item", "cpu", "tolist",
    "numpy", "device_get", "block_until_ready", "batched_block_until_ready", "synchronize",
    "format", "str", "append", "mean", "sum", "max", "min", "savez", "write", "allclose",
}  # fmt: skip
"""Calls that may wait for a device's result."""

PARSED = {}  # (file, name, first line) -> syntax tree, or None
STANDARD = STDLIB.replace("\\", "/") + "/"


def is_users(file):
    """Return whether a file belongs to the user's program, and not to a library."""
    if file.startswith("<") and not file.startswith("<ipython"):
        return False
    package = installed(file)
    return package not in LIBRARIES if package else not file.replace("\\", "/").startswith(STANDARD)


def installed(file):
    """Return the top-level name of a file's installed package; empty for other files."""
    file = file.replace("\\", "/")
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in file:
            return file.rpartition(folder)[2].split("/")[0]
    return ""


def node_of(code):
    """Return the syntax tree of a function or module; None where its source cannot be read.

    Only the lines of the function itself are parsed, because parsing a whole file can hold up the
    program. The top-level code of installed modules runs once, at import, and is not parsed.
    """
    key = code.co_filename, code.co_name, code.co_firstlineno
    if key not in PARSED:
        PARSED[key] = None
        lines = source_lines(code.co_filename)
        try:
            if code.co_name != "<module>":
                PARSED[key] = function_in(lines, code)
            elif len(lines) <= MOST_LINES and not installed(code.co_filename):
                PARSED[key] = read.parsed("\n".join(lines))
        except (SyntaxError, ValueError, RecursionError):
            pass
    return PARSED[key]


def function_in(lines, code):
    """Return the syntax tree of a function with its file's line numbers; None if not found."""
    first, last = code.co_firstlineno, last_line(code)
    if code.co_name.startswith("<") or first > len(lines):  # a lambda, a comprehension
        return None
    indented = lines[first - 1][:1].isspace()  # it is in a block
    before = [""] * (first - 1 - indented) + ["if 1:"] * indented
    for end in range(last, last + CLOSING):
        text = "\n".join(before + lines[first - 1 : end])
        try:
            body = read.parsed(text).body
        except SyntaxError:  # Python 3.10 and earlier do not tell where a call's brackets close
            continue
        node = next(iter(body[0].body if indented else body), None)
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        return node if is_function and node.name == code.co_name else None
    return None


def last_line(code):
    """Return the last line of a function, including functions defined inside it."""
    if hasattr(code, "co_positions"):
        last = max((end for _, end, _, _ in code.co_positions() if end is not None), default=0)
    else:
        last = max((line for _, line in read.findlinestarts(code) if line is not None), default=0)
    inner = [last_line(one) for one in code.co_consts if isinstance(one, type(code))]
    return max([last, code.co_firstlineno, *inner])


def loops_of(code):
    """The [first, last] lines of a function's loops, outer loops before those inside of them."""
    node, kinds = node_of(code), (ast.For, ast.AsyncFor, ast.While)
    return [[one.lineno, one.end_lineno] for one in statements(node) if isinstance(one, kinds)]


def statements(node):
    """The statements of a function in order, without those of functions defined inside of it."""
    for name in BLOCKS if node is not None else ():
        for child in getattr(node, name, ()):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


def own_parts(statement):
    """The expressions of a statement, without the statements inside of it."""
    return [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr)] + [
        child for item in getattr(statement, "items", ()) for child in ast.iter_child_nodes(item)
    ]


def origin(frame, line):
    """The compiled or learning call that made the values which a line of a frame uses, or None.

    Follows the line's names back through the assignments of its function.
    """
    node = node_of(frame.f_code)
    inner = statement_at(node, line)
    if inner is None:
        return None
    search = Search(node, partial(read.resolve, frame))
    found = (search.trace(part, inner.lineno, DEPTH) for part in own_parts(inner))
    return next(filter(None, found), None)


def is_given(code, line):
    """Whether a line of a function uses one of its arguments: its caller has made the value."""
    at = statement_at(node_of(code), line)
    parts = own_parts(at) if at is not None else ()
    names = {one.id for part in parts for one in ast.walk(part) if isinstance(one, ast.Name)}
    return not names.isdisjoint(code.co_varnames[: code.co_argcount])


def statement_at(node, line):
    """The innermost statement of a function that a line belongs to, or None."""
    around = [one for one in statements(node) if one.lineno <= line <= one.end_lineno]
    return around[-1] if around else None  # the innermost comes last


class Search:
    """Follows values of one function back to the calls that made them. `object_of` gives the object
    of a dotted name."""

    def __init__(self, node, object_of):
        self.object_of = object_of
        self.kinds = {}  # dotted name of a called function -> its description
        self.made = {}  # dotted name -> [(line, expression)]
        for one in statements(node):
            self.note(one)

    def note(self, statement):
        """Note which names a statement assigns, or appends to, and from what."""
        value = getattr(statement, "value", None)
        targets = list(getattr(statement, "targets", ())) or [getattr(statement, "target", None)]
        if isinstance(statement, (ast.For, ast.AsyncFor)):
            value = statement.iter
        call = value if isinstance(value, ast.Call) and isinstance(statement, ast.Expr) else None
        if call is not None and call.args and isinstance(call.func, ast.Attribute):
            targets, value = [call.func.value], call.args[0]
        if value is None:
            return
        for target in targets:
            for one in ast.walk(target) if target is not None else ():
                if isinstance(one, (ast.Name, ast.Attribute)):
                    self.made.setdefault(read.dotted(one), []).append((statement.lineno, value))

    def learned(self):
        """The names that are assigned from compiled calls which take gradients: {name: line}."""
        names = {}
        for name, values in self.made.items():
            for line, value in values:
                calls = [one for one in ast.walk(value) if isinstance(one, ast.Call)]
                if any(self.kind(one).get("learns") for one in calls):
                    names[name] = line
        return names

    def kind(self, call):
        """Describe the called object if it is compiled or calls a compiled function; else `{}`."""
        name = read.dotted(call.func)
        if name not in self.kinds:
            found, owner = self.object_of(name), self.object_of(name.rpartition(".")[0])
            kind = described(found, owner) if found is not None else {}
            compiled = kind.get("compiled") or kind.get("calls_compiled")
            self.kinds[name] = kind if compiled else {}
        return self.kinds[name]

    def trace(self, expression, line, depth):
        """The call that made a value which is used at a line, or None."""
        nodes = list(ast.walk(expression))
        for one in nodes:
            if isinstance(one, ast.Call):
                kind = self.kind(one)
                if kind:
                    learns = kind.get("learns", False)
                    return {"call": read.dotted(one.func), "line": one.lineno, "learns": learns}
        for one in nodes if depth else ():
            if not isinstance(one, (ast.Name, ast.Attribute)):
                continue
            made = self.made.get(read.dotted(one), ())
            before = [(at, value) for at, value in made if at < line]
            after = [(at, value) for at, value in made if at >= line and value is not expression]
            for at, value in before[::-1] + after[::-1]:
                found = self.trace(value, at, depth - 1)
                if found is not None:
                    return found
        return None


def pending(frame, known):
    """Code and line of a learning call whose result JAX's device still computes, or None.

    Looks at the arrays that the frame and its callers have assigned from such calls, and at those
    that other methods of the same objects have. `known` keeps the names of each function and class.
    """
    for _ in range(CALLERS):
        if frame is None:
            return None
        code = frame.f_code
        if is_users(code.co_filename):
            if id(code) not in known:
                object_of = partial(read.resolve, frame)
                known[id(code)] = (code, Search(node_of(code), object_of).learned())
            for name, line in known[id(code)][1].items():
                if unready(read.resolve(frame, name)):
                    return code, line
            owner = owner_of(frame)
            for method, names, line in by_methods(owner, known) if owner is not None else ():
                if unready(read.attribute_at(owner, names)):
                    return method, line
        frame = frame.f_back
    return None


def owner_of(frame):
    """The object of the user's whose method a frame runs, or None."""
    code = frame.f_code
    if not code.co_argcount or code.co_varnames[0] != "self":
        return None
    found = local_of(frame, "self")
    return None if found is None or read.package_of(type(found)) in LIBRARIES else found


def by_methods(owner, known):
    """Rows [code, names, line] for the attributes (`names` is their chain) that an object's methods
    assign from learning calls."""
    cls = type(owner)
    if id(cls) not in known:
        found = []
        known[id(cls)] = (cls, found)  # first: a class that cannot be read is not tried again
        for method in methods_of(cls):
            found.extend(assigned_by(method, owner))
    return known[id(cls)][1]


def methods_of(cls):
    """The functions that the user defines in a class and its bases, without overridden ones."""
    seen = {}
    for base in read.order_of(cls):
        for name, value in list(read.defined_in(base).items()):
            seen.setdefault(name, value)
    functions = [one for one in seen.values() if type(one) is read.types.FunctionType]
    return [one for one in functions if is_users(one.__code__.co_filename)]


def assigned_by(method, owner):
    """The rows of one method, for `by_methods`."""
    code = method.__code__
    if not code.co_argcount or not calls_learning(code, owner):
        return []
    this, scope = code.co_varnames[0], globals_of(method)

    def object_of(dotted):
        first, *names = dotted.split(".")
        return read.attribute_at(owner if first == this else scope.get(first), names)

    learned = Search(node_of(code), object_of).learned()
    chains = [(target.split("."), line) for target, line in learned.items()]
    return [(code, names[1:], line) for names, line in chains if names[0] == this and names[1:]]


def calls_learning(code, owner):
    """Whether a method names a compiled function of its object's that takes gradients."""
    objects = (read.attribute_of(owner, name) for name in code.co_names)
    compiled = (one for one in objects if is_compiled(type(one)))
    return any(described(one, owner)["learns"] for one in compiled)


def unready(value):
    """Whether a value holds a JAX array that a device still computes."""
    array = first_array(value, DEPTH)
    return array is not None and not array.is_ready()


def first_array(value, depth):
    """The first JAX array in a value: a tuple, list, dictionary or dataclass."""
    kind = type(value)
    if read.name_of(kind) == "ArrayImpl" and read.package_of(kind) in ("jax", "jaxlib"):
        return value
    if not depth:
        return None
    if issubclass(kind, dict):
        inner = list(dict.values(value))
    elif issubclass(kind, (tuple, list)):
        base = tuple if issubclass(kind, tuple) else list
        inner = base.__getitem__(value, slice(8))
    else:
        fields = read.attribute_of(kind, "__dataclass_fields__")
        named = fields if type(fields) is dict else ()
        inner = [read.attribute_of(value, name) for name in named]
    for one in inner[:8]:
        found = first_array(one, depth - 1)
        if found is not None:
            return found
    return None
