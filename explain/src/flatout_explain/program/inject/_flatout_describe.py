"""Describes frames, classes and objects of the observed program: they are read, never run.

Nothing is imported later than at the start: the program may be in the middle of importing the same
module.
"""

import ast
import re
import types
from bisect import bisect_right
from dis import findlinestarts
from itertools import islice

from _flatout_locals import local_of
from _flatout_own import LIBRARIES, __builtins__, full_path, kept, source_line, sys  # noqa: F401

ast, types = kept(ast), kept(types)
CALLED = re.compile(r"([A-Za-z_][\w.]*)\s*\(")
WORDS = ("if", "while", "for", "return", "and", "or")
COMPILING = (
    ("/jax/_src/", (
        "trace_to_jaxpr", "_trace_for_jit", "backend_compile", "backend_compile_and_load",
        "compile_or_get_cached", "from_hlo", "lower_jaxpr_to_module", "xla_primitive_callable",
        "lower_sharding_computation", "_create_pjit_jaxpr",
    )),
    ("/torch/_dynamo/", ("_compile", "compile_inner", "_compile_inner")),
    ("/torch/_inductor/", ("compile_fx", "compile_fx_inner")),
    ("/tensorflow/python/eager/polymorphic_function/", (
        "trace_function", "_maybe_define_function", "_initialize",
    )),
    ("/numba/core/", ("compile", "compile_extra")),
)  # fmt: skip
"""Libraries' folders, and their functions that trace or compile."""

ESCAPE = re.compile(r"\\([\\'\"\r\n])|\\(?:N\{[^{}\n]*\})?")
NUMBER = re.compile(
    r"\b(0[xX][\da-fA-F_]+|0[bBoO][0-7_]+|\d[\d_.]*(?:[eE][+-]?[\d_]+)?[jJ]?)"
    r"(?=(?:and|else|for|if|in|is|not|or)\b)"
)
"""Python warns of escapes that it does not know, and of numbers that a keyword touches."""

ITEMS = 8  # of a value, that are looked at
COUNTED = {}  # id of a function that counts its calls -> (it, the function that it calls)
LINES = {}  # id of a code -> where its lines begin, and which they are
COLLECTING = set()  # codes of functions that Python calls in a garbage collection
DEPTH = 24  # of a stack that is searched for them


def thread_attribute(ident, name):
    """Return an attribute of a thread known to `threading` (``_name``, ``_native_id``), or None."""
    return attribute_of((loaded("threading", "_active") or {}).get(ident), name)


class CollectingError(ValueError):
    """No source is parsed during a garbage collection."""


def parsed(text, mode="exec"):
    """Return the syntax tree of a source, without Python's warnings about it.

    What they would be about is replaced in the text: filters of warnings are those of all threads,
    and so the program's. Texts in the tree are therefore without escapes. Python counts the depth
    of all syntax trees together while it makes them: one that is made within a garbage collection
    would end the program with a SystemError if that collection has interrupted another.

    Raises:
        CollectingError: a thread is in a garbage collection.
    """
    for frame in sys._current_frames().values():
        for _ in range(DEPTH):
            if frame is None:
                break
            if frame.f_code in COLLECTING:
                raise CollectingError
            frame = frame.f_back
    if "\\" in text:
        text = ESCAPE.sub(lambda found: found.group() if found.group(1) else "_", text)
    return compile(NUMBER.sub(r"\1 ", text), "<unknown>", mode, ast.PyCF_ONLY_AST)


def line_of(code, lasti):
    """Return the line of an instruction."""
    table = LINES.get(id(code))
    if table is None:
        starts = [(at, line) for at, line in findlinestarts(code) if line is not None]
        table = LINES[id(code)] = ([at for at, _ in starts], [line for _, line in starts])
    at = bisect_right(table[0], lasti)
    return table[1][at - 1] if at else code.co_firstlineno


MODULE = type.__dict__["__module__"].__get__
ARGS = BaseException.__dict__["args"].__get__
TEXT = 300  # characters of an exception
PLAIN = {str, int, float, bool, type(None)}
BUILT_IN = {
    each for each in __builtins__.values() if type(each) is type and issubclass(each, BaseException)
}


def name_of(cls):
    """Return the name of a class."""
    return type.__getattribute__(cls, "__name__")


def order_of(cls):
    """Return a class and its bases, without calling anything that its metaclass defines."""
    return type.__getattribute__(cls, "__mro__")


def defined_in(cls):
    """Return the names that a class itself defines, with their values."""
    return type.__getattribute__(cls, "__dict__")


def module_of(cls):
    """Return the name of a class's module from `type` itself, whatever the class defines."""
    try:
        module = MODULE(cls)
    except AttributeError:
        return ""
    return module if type(module) is str else ""


def offers(cls, name):
    """Return whether a class or one of its bases defines a name."""
    return any(name in defined_in(base) for base in order_of(cls))


def rooted(cls):
    """Return the name of a class with its topmost package."""
    return "%s.%s" % (package_of(cls), name_of(cls))


def package_of(cls):
    """Return the topmost package of a class."""
    return module_of(cls).split(".")[0]


def is_compiling(file, name):
    """Return 2 for a library's function that compiles, 1 for one that may call it, else 0."""
    file = file.replace("\\", "/")
    if "/jax/_src/" in file and name == "cache_miss":
        return 1
    return 2 * any(folder in file and name in names for folder, names in COMPILING)


def text_at(code, lasti):
    """Return the source text of the instruction and the name of what it calls, as far as known."""
    if hasattr(code, "co_positions"):
        at = next(islice(code.co_positions(), lasti // 2, None), None)
        if at is not None and None not in at and at[0] and at[1] - at[0] < 40:
            lines = [source_line(code.co_filename, n) for n in range(at[0], at[1] + 1)]
            if lines and lines[0]:
                raw = [line.encode("utf-8", "replace") for line in lines]  # columns count bytes
                raw[-1] = raw[-1][: at[3]]
                raw[0] = raw[0][at[2] :]
                return call_in(b"\n".join(raw).decode("utf-8", "replace"))
    text = source_line(code.co_filename, line_of(code, lasti)).strip()
    return text[:200], first_call(text)


def call_in(text):
    """Return (text, dotted name of the call that it is), parsed by the program's own Python."""
    try:
        node = parsed("(" + text + "\n)", "eval").body
    except (SyntaxError, ValueError):
        return text.strip()[:200], first_call(text)
    return text[:200], dotted(node.func) if isinstance(node, ast.Call) else None


def dotted(node):
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return "%s.%s" % (inner, node.attr) if inner else "?." + node.attr
    return "?"


def first_call(text):
    """Return the first call on a line, for interpreters that do not report which call runs."""
    return next((name for name in CALLED.findall(text) if name not in WORDS), None)


def in_class(cls, name):
    """Return the value of a name in a class or the first of its bases that defines it, or None."""
    return plain(stored_in(cls, name))


def stored_in(cls, name):
    """Return the same as it is stored: of a static or a class method no function."""
    return next((d[name] for d in map(defined_in, order_of(cls)) if name in d), None)


def plain(method):
    """Return the function of a static or a class method; anything else itself."""
    return method.__func__ if type(method) in (staticmethod, classmethod) else method


def attribute_of(value, name):
    """Return an attribute of an object or its class, or None, without calling the program.

    Nor is the object's ``__dict__`` read: Python 3.11 and later then make a dictionary for the
    object, which slows all of its attributes from then on.
    """
    found = in_class(type(value), name)
    kind = type(found)
    if kind is not types.FunctionType and offers(kind, "__get__"):
        return found  # a property, say
    try:
        own = object.__getattribute__(value, name)
    except Exception:
        return found
    return found if type(own) is types.MethodType and own.__func__ is found else own


def resolve(frame, dotted):
    """Return the object of a dotted name in a frame, without running anything of the program."""
    first, *words = dotted.split(".")
    found = local_of(frame, first)
    if found is None:
        found = dict.get(frame.f_globals, first)
    return attribute_at(found, words)


def attribute_at(found, words):
    """Follow a chain of attributes with `attribute_of`; return the last one, or None."""
    for word in words:
        found = attribute_of(found, word)
    return COUNTED[id(found)][1] if id(found) in COUNTED else found


def items_of(value):
    """Return the first items of a dictionary, tuple, list or dataclass, without calling anything of
    the program; none of anything else."""
    kind = type(value)
    if issubclass(kind, dict):
        return list(islice(dict.values(value), ITEMS))
    for base in (tuple, list):
        if issubclass(kind, base):
            return base.__getitem__(value, slice(ITEMS))
    fields = attribute_of(kind, "__dataclass_fields__")
    named = islice(fields, ITEMS) if type(fields) is dict else ()
    return [attribute_of(value, name) for name in named]


def loaded(module, name):
    """Return the value of a name in a module that the program has imported, or None."""
    module = sys.modules.get(module)
    return module.__dict__.get(name) if type(module) is types.ModuleType else None


def main_module():
    """Return the file of the program's main module, and its full name if it was started with
    `-m`."""
    module = sys.modules.get("__main__") or sys.modules.get("__mp_main__")
    scope = getattr(module, "__dict__", {})
    file, name = scope.get("__file__"), getattr(scope.get("__spec__"), "name", None)
    path = full_path(file) if type(file) is str and file else ""
    return {"file": path, "name": name if type(name) is str else ""}


def ended_by():
    """Return type and text of the exception that ends the program, or None; the text is empty if
    the exception is not a plain one."""
    error = loaded("sys", "last_value")
    kind = type(error)
    if not issubclass(kind, BaseException):
        return None
    given = ARGS(error)
    text = given[0][:TEXT] if given and type(given[0]) is str else ""
    if kind in BUILT_IN:
        files = [error.filename, error.filename2] if issubclass(kind, OSError) else []
        if all(type(part) in PLAIN for part in [*given, *files]):
            text = kind.__str__(error)[:TEXT]
    return ["%s.%s" % (module_of(kind), name_of(kind)), text]


def built_in(module, name):
    """Return a built-in function of a module; None if the program has replaced it."""
    found = loaded(module, name)
    return found if type(found) is types.BuiltinFunctionType else None


def dynamo_used():
    """Return whether TorchDynamo has compiled functions: a profile function could disturb it."""
    return bool(dict.get(loaded("torch._dynamo.utils", "counters") or {}, "frames"))
