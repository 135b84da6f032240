"""Finds and parses the source code of a function: its loops and its other statements."""

import _flatout_describe as read
from _flatout_own import STDLIB, __builtins__, source_lines  # noqa: F401

ast = read.ast
MOST_LINES = 8000  # files with more lines are not parsed: that would hold up the program
BLOCKS = "body", "handlers", "cases", "orelse", "finalbody"  # fields that hold statements, in order
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef
ALWAYS = (ast.Module, *FUNCTIONS, ast.With, ast.AsyncWith, ast.Try)
CLOSING = 8  # maximum number of lines with closing brackets at the end of a function
PARSED = {}  # (file, name, first line) -> syntax tree, or None
STANDARD = STDLIB.replace("\\", "/") + "/"


def is_users(file):
    """Return whether a file belongs to the user's program, and not to a library."""
    if file.startswith("<") and not file.startswith("<ipython"):
        return False
    package = installed(file)
    return (
        package not in read.LIBRARIES
        if package
        else not file.replace("\\", "/").startswith(STANDARD)
    )


def installed(file):
    """Return the top-level name of a file's installed package; empty for other files."""
    file = file.replace("\\", "/")
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in file:
            return file.rpartition(folder)[2].split("/")[0]
    return ""


def node_of(code):
    """Return the syntax tree of a function or module; None where its source cannot be read; raise
    `CollectingError` as `parsed` does.

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
        except read.CollectingError:
            del PARSED[key]  # it is read when it is asked for again
            raise
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
        return node if isinstance(node, FUNCTIONS) and node.name == code.co_name else None
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
    """Return the [first, last] lines of a function's loops, outer loops before those inside of
    them."""
    kinds = ast.For, ast.AsyncFor, ast.While
    loops = (one for one in statements(node_of(code)) if isinstance(one, kinds))
    return [[one.lineno, one.end_lineno] for one in loops]


def statements(node):
    """Return the statements of a function in order, without functions and classes inside of it."""
    found = (one for one, _ in in_blocks(node, [], 0))
    return [one for one in found if not isinstance(one, FUNCTIONS + (ast.ClassDef,))]


def in_blocks(node, blocks, block):
    """Return the statements of a function in order, each with its block; a function defined inside
    of it is one of them. `blocks` gets the block around each one that may not run whenever that
    runs."""
    always = isinstance(node, ALWAYS)
    for name in BLOCKS:
        children = getattr(node, name, ())
        own = block
        if children and not (always and name in ("body", "finalbody")):
            own = len(blocks)
            blocks.append(block)
        for child in children:
            if isinstance(child, ast.stmt):
                yield child, own
            if not isinstance(child, FUNCTIONS + (ast.ClassDef,)):
                yield from in_blocks(child, blocks, own)
