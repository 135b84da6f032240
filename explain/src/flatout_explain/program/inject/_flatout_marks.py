"""Finds the blocks and functions that the program itself marks as a phase, in its source.

A mark is the context manager of a ``with`` statement, or a decorator, with a text: Flatout's
`phase`, or a range of PyTorch's, JAX's or NVIDIA's profiler.
"""

from functools import partial

import _flatout_describe as read
import _flatout_source as source
from _flatout_own import __builtins__  # noqa: F401

ast = read.ast
CLASSES = {
    "flatout.PhaseMark", "torch.record_function", "jax.TraceAnnotation", "nvtx.annotate",
}  # fmt: skip
FUNCTIONS = {("flatout.spans", "phase"), ("torch.cuda.nvtx", "range")}
"""Classes (package and name) and functions (module and name) whose results are marks."""

TEXTS = {"name", "message", "msg"}  # parameters that take the text
MOST = 40  # characters of a text
TRIES = 40  # samples in a block, after which a mark whose name has no value is given up


class Block:
    """Lines that may be marked. `text` is the mark's; empty without a mark, None if unknown."""

    def __init__(self, first, last, expression):
        self.first, self.last, self.expression = first, last, expression
        self.text = None
        self.tries = TRIES


class Marks:
    """The marks of one function. Names in them have values once a sample is in their block."""

    def __init__(self, code):
        self.blocks = list(blocks_of(source.node_of(code)))
        self.open = list(self.blocks)  # those whose mark is unknown, or may be another next time

    def look(self, frame, line):
        """Return [first, last, text] of all marks if those around a line changed; else None."""
        changed = False
        for block in list(self.open):
            if not block.first <= line <= block.last:
                continue
            text, lasts = text_of(block.expression, partial(read.resolve, frame))
            if text is None:
                block.tries -= 1
                lasts = not block.tries
            elif block.text is None:
                block.text, changed = text, changed or bool(text)
            elif text != block.text:  # one line has several marks
                block.text = "%s or %s" % (block.text or "none", text or "none")
                changed = lasts = True
            if lasts:
                self.open.remove(block)
        marked = [[one.first, one.last, one.text] for one in self.blocks if one.text]
        return marked if changed else None


def blocks_of(node):
    """Yield the blocks that a context manager or a decorator may mark, outer ones first."""
    for decorator in getattr(node, "decorator_list", ()):
        yield Block(node.lineno, node.end_lineno, decorator)
    for one in source.statements(node):
        for item in one.items if isinstance(one, ast.With) else ():
            made = item.context_expr
            # ``mark if profiling else nullcontext()``
            for expression in [made.body, made.orelse] if isinstance(made, ast.IfExp) else [made]:
                yield Block(one.body[0].lineno, one.end_lineno, expression)


def text_of(expression, object_of):
    """Return the text of a mark (empty if it is none, None if that is unknown), and whether it is
    the same each time. `object_of` returns the object of a dotted name."""
    if not isinstance(expression, ast.Call):
        found = object_of(read.dotted(expression))
        if found is None:
            return None, False
        text = read.attribute_of(found, "name") if makes_marks(type(found)) else ""
        return (text[:MOST] if type(text) is str else ""), False
    made_by = object_of(read.dotted(expression.func))
    if made_by is None:
        return None, False
    named = [one.value for one in expression.keywords if one.arg in TEXTS]
    given = next(iter(expression.args[:1] + named), None)
    if given is None or not makes_marks(made_by):
        return "", True
    if isinstance(given, ast.Constant):
        return (given.value[:MOST] if type(given.value) is str else ""), True
    text = object_of(read.dotted(given))
    return (text[:MOST] if type(text) is str else ""), False


def makes_marks(found):
    """Return whether a function or a class gives marks."""
    if type(found) is read.types.FunctionType:
        return (found.__module__, found.__name__) in FUNCTIONS
    if not issubclass(type(found), type):
        return False
    return any(read.rooted(base) in CLASSES for base in read.order_of(found))
