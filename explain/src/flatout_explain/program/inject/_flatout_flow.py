"""Reads from a function's source which values each of its statements uses and makes.

A row is [first line, last line, names made, names used, calls, block] for each statement; of a loop
or another block it covers the first line alone. Names are dotted, and numbers of the list that
comes with the rows; those made are in the order of the source. A call is [name of the function,
name of each argument], with -1 where that is no name. A block is a number of statements that run
one after the other. What is returned or yielded makes the name `RETURNED`. A method that is called
for its effect (``rows.append(row)``) and a stored item (``rows[0] = row``) make their object, which
they use.
"""

import _flatout_describe as read
import _flatout_source as source
from _flatout_gradients import described
from _flatout_own import __builtins__  # noqa: F401
from _flatout_window import kinds_of

ast = read.ast
RETURNED = "return"
VARIABLE, KEYWORDS = 0x04, 0x08  # flags of a code with ``*args`` and ``**kwargs``
MOST_ROWS = 300  # statements of one function
DEPTH = 4  # assignments that are followed back from a value to the call that made it
PARAMETERS = "torch.Parameter", "torch.Buffer"
FUNCTIONS = (*source.FUNCTIONS, ast.Lambda)
FLOWS = {}  # id of a code -> (code, its flow)


class Statement:
    """The names that a statement makes and uses.

    `calls` are [line, name of the function, name of each argument], with None for what is no name.
    `values` are the names of an assignment's targets, in order; `unpacks`: whether these are three
    or more, and get the value of a call.
    """

    def __init__(self, node, block):
        self.first, self.last, self.block = node.lineno, header_end(node), block
        self.made, used = of_statement(node)
        self.used = sorted(used)
        self.calls = list(calls_in(node))
        kinds = ast.Assign, ast.AnnAssign, ast.AugAssign
        targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
        first = targets[:1] if isinstance(node, kinds) else []
        several = first and isinstance(first[0], (ast.Tuple, ast.List))
        self.values = list(map(base_of, first[0].elts if several else first))
        calls = isinstance(getattr(node, "value", None), (ast.Call, ast.Await))
        self.unpacks = bool(several) and calls and len(self.values) >= 3


class Flow:
    """The statements of a function, and the block around each of their blocks."""

    def __init__(self, code):
        self.blocks = [-1]
        nodes = source.in_blocks(source.node_of(code), self.blocks, 0)
        self.statements = []
        try:
            found = [Statement(node, block) for node, block in nodes]
            self.statements = [one for one in found if one.made or one.used]
        except RecursionError:  # of a deep expression
            pass

    def at(self, line):
        """Return the innermost statement that a line belongs to, or None."""
        around = [one for one in self.statements if one.first <= line <= one.last]
        return around[-1] if around else None  # the innermost comes last


def flow_of(code):
    """Return the flow of a function."""
    if id(code) not in FLOWS:
        FLOWS[id(code)] = code, Flow(code)
    return FLOWS[id(code)][1]


def described_flow(code):
    """Return the names, the arguments, the blocks and the rows of a function; None where its source
    cannot be read."""
    flow, names = flow_of(code), {}
    if source.node_of(code) is None or len(flow.statements) > MOST_ROWS:
        return None

    def numbers(some):
        return [names.setdefault(name, len(names)) if name else -1 for name in some]

    rows = [
        [one.first, one.last, numbers(one.made), sorted(numbers(one.used)),
         [numbers(call) for _, *call in one.calls], one.block]
        for one in flow.statements
    ]  # fmt: skip
    known = code.co_argcount + code.co_kwonlyargcount
    known += bool(code.co_flags & VARIABLE) + bool(code.co_flags & KEYWORDS)
    args = list(code.co_varnames[:known])
    return {"names": list(names), "args": args, "blocks": flow.blocks, "rows": rows}


# --- Names in a statement ---------------------------------------------------------------------


def header_end(statement):
    """Return the last line of a statement; of a block, the last one before its statements."""
    inner = [one.lineno for name in source.BLOCKS for one in getattr(statement, name, ())[:1]
             if isinstance(one, ast.stmt)]  # fmt: skip
    if not inner or isinstance(statement, FUNCTIONS):
        return statement.end_lineno
    return max(statement.lineno, min(inner) - 1)


def own_parts(statement):
    """Return the expressions of a statement, without the statements inside of it."""
    return [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr)] + [
        child for item in getattr(statement, "items", ()) for child in ast.iter_child_nodes(item)
    ]


def of_statement(statement):
    """Return the names that a statement makes, and those that it uses."""
    made, used = [], set()
    if isinstance(statement, source.FUNCTIONS):
        inside = {one.arg for one in ast.walk(statement.args) if isinstance(one, ast.arg)}
        for one in statement.body:
            note_names(one, [], used)
        return [statement.name], {name for name in used if name.split(".")[0] not in inside}
    for part in own_parts(statement):
        note_names(part, made, used)
    value = getattr(statement, "value", None)
    called = value.value if isinstance(value, ast.Await) else value
    if isinstance(statement, ast.Return) or isinstance(value, (ast.Yield, ast.YieldFrom)):
        made.append(RETURNED)
    elif isinstance(statement, ast.Expr) and isinstance(called, ast.Call):
        changed = base_of(called.func.value) if isinstance(called.func, ast.Attribute) else None
        made += [changed] if changed not in (None, "self") else []
        used.update(made)
    elif isinstance(statement, ast.AugAssign):
        used.update(made)
    return made, used


def calls_in(statement):
    """Return the calls of a statement, each with its line, the names of its function and its
    arguments."""
    for part in () if isinstance(statement, FUNCTIONS) else own_parts(statement):
        for one in ast.walk(part):
            if isinstance(one, ast.Call):
                named = [base_of(word.value) for word in one.keywords]
                given = [base_of(value) for value in one.args]
                yield [one.lineno, read.dotted(one.func)] + given + named


def base_of(node):
    """Return the dotted name of an object, or of the object whose item a node is; else None."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, (ast.Name, ast.Attribute)):
        name = read.dotted(node)
        return None if "?" in name else name
    return None


def note_names(node, made, used):
    """Note the dotted names that an expression makes, and those that it uses, each by its longest
    chain of attributes. An item that is stored makes its object, whose others stay."""
    stored = isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
    if isinstance(node, (ast.Name, ast.Attribute)):
        name = read.dotted(node)
        if "?" not in name:
            made.append(name) if stored else used.add(name)
            return
    elif stored and isinstance(node, ast.Subscript) and base_of(node):
        made.append(base_of(node))
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.comprehension) and child is node.target):
            note_names(child, made, used)


# --- Values of a running function -------------------------------------------------------------


class Search:
    """Follows values of a function back to the compiled calls that made them. `object_of` gives the
    object of a dotted name."""

    def __init__(self, code, object_of):
        self.flow, self.object_of = flow_of(code), object_of
        self.kinds = {}  # dotted name of a called function -> its description

    def kind(self, name):
        """Describe a called object if it is compiled or calls a compiled function; else `{}`."""
        if name not in self.kinds:
            found, owner = self.object_of(name), self.object_of(name.rpartition(".")[0])
            kind = described(found, owner) if found is not None else {}
            compiled = kind.get("compiled") or kind.get("calls_compiled")
            self.kinds[name] = kind if compiled else {}
        return self.kinds[name]

    def compiled(self):
        """Return the lines that call compiled functions: {line: whether one takes gradients}."""
        found = {}
        for one in self.flow.statements:
            kinds = [kind for _, name, *_ in one.calls if (kind := self.kind(name))]
            kinds = [kind["learns"] for kind in kinds if kind.get("compiled")]
            if kinds:
                found[one.first] = any(kinds) or found.get(one.first, False)
        return found

    def learned(self):
        """Return the names that are made by calls which take gradients: {name: line}."""
        return {
            name: one.first
            for one in self.flow.statements
            for name in one.made
            if any(self.kind(called).get("learns") for _, called, *_ in one.calls)
        }

    def origin(self, line):
        """Return the compiled or learning call that made the values which a line uses, or None: the
        one that the fewest assignments lead to."""
        first = self.flow.at(line)
        level, seen = [first] if first is not None else [], set()
        for _ in range(DEPTH + 1):
            for called, name, *_ in (call for one in level for call in one.calls):
                if self.kind(name):
                    return {"call": name, "line": called, "learns": self.kind(name)["learns"]}
            seen.update(level)
            makers = (maker for one in level for maker in self.makers(one))
            level = [one for one in dict.fromkeys(makers) if one not in seen]
        return None

    def makers(self, statement):
        """Return the statements that made what a statement uses, or that it is a part of; the last
        ones before it come first."""
        chains = [name.split(".") for name in statement.used]
        names = {".".join(chain[:n]) for chain in chains for n in range(1, len(chain) + 1)}
        made = [one for one in self.flow.statements if not names.isdisjoint(one.made)]
        before = [one for one in made if one.first < statement.first]
        return before[::-1] + [one for one in made if one.first > statement.first][::-1]


def is_given(code, line):
    """Return whether a line of a function uses one of its arguments: its caller has made the
    value."""
    at = flow_of(code).at(line)
    names = {name.split(".")[0] for name in at.used} if at is not None else set()
    return not names.isdisjoint(code.co_varnames[: code.co_argcount])


def known_values(frame, statement):
    """Describe the values that a statement of a running frame made the last time; None before that.

    The kinds of three or more values that it unpacks, whether a tensor among them has gradients,
    and whether the line uses a network's parameters.
    """
    used = {name.split(".")[0] for name in statement.used}
    kinds = {type(read.resolve(frame, name)) for name in used}
    parameter = any(read.rooted(kind) in PARAMETERS for kind in kinds)
    found = {"parameter": True} if parameter else {}
    if None in statement.values or not statement.values:
        return found
    values = [read.resolve(frame, name) for name in statement.values]
    if all(value is None for value in values):
        return None
    if statement.unpacks:
        found["kinds"] = kinds_of(values)
    grads = [has_gradients(value) for value in values]
    if any(grad is not None for grad in grads):
        found["grad"] = any(grads)
    return found


def has_gradients(value):
    """Return whether PyTorch follows a tensor for gradients; None for anything else, and for
    tensors of classes other than PyTorch's own: these may define functions of their own."""
    kind = type(value)
    base = read.loaded("torch._C", "TensorBase") or read.loaded("torch._C", "_TensorBase")
    plain = read.rooted(kind) in ("torch.Tensor", "torch.Parameter")
    if not plain or base not in read.order_of(kind):
        return None
    return bool(read.defined_in(base)["requires_grad"].__get__(value))
