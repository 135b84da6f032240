"""Reads from a function's source which values each of its statements uses and makes.

A row is [first line, last line, names made, names used, calls, block] for each statement; of a loop
or another block it covers the first line alone. Names are dotted, and numbers of the list that
comes with the rows; those made are in the order of the source. A call is [name of the function,
name of each argument], with -1 where that is no name. A block is a number of statements that run
one after the other. What is returned or yielded makes the name `RETURNED`. A method that is called
for its effect (``rows.append(row)``) and a stored item (``rows[0] = row``) make their object, which
they use.
"""

from functools import partial

import _flatout_describe as read
import _flatout_source as source
from _flatout_own import __builtins__  # noqa: F401
from _flatout_window import kinds_of

ast = read.ast
RETURNED = "return"
ALWAYS = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.With, ast.AsyncWith, ast.Try)
VARIABLE, KEYWORDS = 0x04, 0x08  # flags of a code with ``*args`` and ``**kwargs``
MOST_ROWS = 300  # statements of one function
PARAMETERS = "torch.Parameter", "torch.Buffer"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def flow_of(code):
    """The names, the arguments, the blocks and the rows of a function; None where its source cannot
    be read."""
    node = source.node_of(code)
    if node is None:
        return None
    names, rows, blocks = {}, [], [-1]

    def number(name):
        return names.setdefault(name, len(names))

    for one, block in all_statements(node, blocks, 0):
        made, used = of_statement(one)
        if made or used:
            calls = [[number(name) if name else -1 for name in call] for call in calls_in(one)]
            rows.append([one.lineno, header_end(one), list(map(number, made)),
                         sorted(map(number, used)), calls, block])  # fmt: skip
        if len(rows) > MOST_ROWS:
            return None
    known = code.co_argcount + code.co_kwonlyargcount
    known += bool(code.co_flags & VARIABLE) + bool(code.co_flags & KEYWORDS)
    args = list(code.co_varnames[:known])
    return {"names": list(names), "args": args, "blocks": blocks, "rows": rows}


def all_statements(node, blocks, block):
    """The statements of a function in order, each with its block; a function defined inside of it
    is one of them. `blocks` gets the block around each one that may not run whenever that runs."""
    always = isinstance(node, ALWAYS)
    for name in source.BLOCKS:
        children = getattr(node, name, ())
        own = block
        if children and not (always and name in ("body", "finalbody")):
            own = len(blocks)
            blocks.append(block)
        for child in children:
            if isinstance(child, ast.stmt):
                yield child, own
            if not isinstance(child, FUNCTIONS + (ast.ClassDef,)):
                yield from all_statements(child, blocks, own)


def header_end(statement):
    """Return the last line of a statement; of a block, the last one before its statements."""
    inner = [one.lineno for name in source.BLOCKS for one in getattr(statement, name, ())[:1]
             if isinstance(one, ast.stmt)]  # fmt: skip
    if not inner or isinstance(statement, FUNCTIONS):
        return statement.end_lineno
    return max(statement.lineno, min(inner) - 1)


def of_statement(statement):
    """The names that a statement makes, and those that it uses."""
    made, used = [], set()
    if isinstance(statement, FUNCTIONS[:2]):
        made.append(statement.name)
        inside = {one.arg for one in ast.walk(statement.args) if isinstance(one, ast.arg)}
        names = set()
        for one in statement.body:
            uses(one, names)
        return made, {name for name in names if name.split(".")[0] not in inside}
    if isinstance(statement, (ast.Return, ast.Expr)):
        value = statement.value
        inner = value.value if isinstance(value, (ast.Yield, ast.YieldFrom, ast.Await)) else value
        if inner is not None:
            uses(inner, used)
        if isinstance(statement, ast.Return) or isinstance(value, (ast.Yield, ast.YieldFrom)):
            made.append(RETURNED)
        elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
            changed = base_of(inner.func.value)
            if changed and changed != "self":
                made.append(changed)
                used.add(changed)
        return made, used
    targets = list(getattr(statement, "targets", ()))
    targets.append(getattr(statement, "target", None))
    targets += [item.optional_vars for item in getattr(statement, "items", ())]
    for target in targets:
        if target is not None:
            makes(target, made, used)
    if isinstance(statement, ast.AugAssign):
        used.update(made)
    for part in source.own_parts(statement):
        if not any(part is target for target in targets):
            uses(part, used)
    return made, used


def calls_in(statement):
    """The calls of a statement, each as the names of its function and its arguments."""
    if isinstance(statement, FUNCTIONS):
        return
    for part in source.own_parts(statement):
        for one in ast.walk(part):
            if isinstance(one, ast.Call):
                named = [base_of(word.value) for word in one.keywords]
                given = [base_of(value) for value in one.args]
                yield [read.dotted(one.func)] + given + named


def makes(target, made, used):
    """Note what a target of an assignment makes."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for one in target.elts:
            makes(one, made, used)
    elif isinstance(target, ast.Starred):
        makes(target.value, made, used)
    else:
        name = base_of(target)
        if name:
            made.append(name)
        if isinstance(target, ast.Subscript):  # the other items stay as they were
            uses(target, used)


def base_of(node):
    """Return the dotted name of an object, or of the object whose item a node is; else None."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, (ast.Name, ast.Attribute)):
        name = read.dotted(node)
        return None if "?" in name else name
    return None


def uses(node, found):
    """Note the dotted names that an expression uses, each by its longest chain of attributes."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        name = read.dotted(node)
        if "?" not in name:
            found.add(name)
            return
    for child in ast.iter_child_nodes(node):
        uses(child, found)


def values_of(statement):
    """The names that a statement makes, in order, and whether it unpacks the value of a call to
    three of them or more."""
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    first = (
        targets[0] if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)) else None
    )
    calls = isinstance(getattr(statement, "value", None), (ast.Call, ast.Await))
    if isinstance(first, (ast.Tuple, ast.List)):
        names = [base_of(one) for one in first.elts]
        return names, calls and len(names) >= 3
    return [base_of(first)] if first is not None else [], False


def unpacking(code):
    """The lines of a function that unpack the value of a call to three names or more, with these:
    which line steps an environment is known by its values, however short the call is."""
    found = {}
    for one in source.statements(source.node_of(code)):
        names, unpacks = values_of(one)
        if unpacks and None not in names:
            found[one.lineno] = names
    return found


def compiled_calls(frame):
    """The lines of a function that call compiled functions: {line: whether it takes gradients}."""
    node, found = source.node_of(frame.f_code), {}
    search = source.Search(node, partial(read.resolve, frame))
    for one in source.statements(node):
        for part in source.own_parts(one):
            for call in (inner for inner in ast.walk(part) if isinstance(inner, ast.Call)):
                kind = search.kind(call)
                if kind.get("compiled"):
                    found[one.lineno] = found.get(one.lineno) or bool(kind.get("learns"))
    return found


def names_at(code, line):
    """The names that a line of a function makes, None among them for what is no name; whether it
    unpacks three or more; and the objects that it uses."""
    statement = source.statement_at(source.node_of(code), line)
    if statement is None:
        return [], False, ()
    made, unpacks = values_of(statement)
    _, used = of_statement(statement)
    return made, unpacks, {name.split(".")[0] for name in used}


def known_values(frame, names):
    """Describe the values that a line of a running frame made the last time; None before that.

    The kinds of three or more values that it unpacks, whether a tensor among them has gradients,
    and whether the line uses a network's parameters. `names` are those of `names_at`.
    """
    made, unpacks, used = names
    kinds = {type(read.resolve(frame, name)) for name in used}
    parameter = any(read.rooted(kind) in PARAMETERS for kind in kinds)
    found = {"parameter": True} if parameter else {}
    if None in made or not made:
        return found
    values = [read.resolve(frame, name) for name in made]
    if all(value is None for value in values):
        return None
    if unpacks:
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
