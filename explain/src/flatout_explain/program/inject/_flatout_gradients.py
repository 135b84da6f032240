"""Finds out whether functions, compiled functions and classes of the program take gradients.

Their code is read, never run.
"""

from functools import partial

import _flatout_describe as read
from _flatout_own import __builtins__  # noqa: F401

GRADIENTS = {
    "grad", "value_and_grad", "vjp", "linearize", "apply_updates", "apply_gradients", "minimize",
    "GradientTape", "gradient", "backward", "filter_grad", "filter_value_and_grad",
}  # fmt: skip
"""Names in the code of a compiled function that learns."""

COMPILED = ("PjitFunction", "CompiledFunction", "_JitWrapper", "Function", "JitWrapped", "JitFn")
"""Types of compiled functions: JAX's, Equinox's, TensorFlow's, Flax's."""

LEARNERS = {}  # id of a class -> (class, whether it learns): no id is used twice


def class_learns(cls):
    """Return whether a method of a class takes gradients, whatever it inherits."""
    if read.package_of(cls) in read.LIBRARIES:
        return False
    if id(cls) not in LEARNERS:
        methods = map(read.plain, list(read.defined_in(cls).values()))
        codes = [method.__code__ for method in methods if type(method) is read.types.FunctionType]
        LEARNERS[id(cls)] = (cls, any(map(uses_gradients, codes)))
    return LEARNERS[id(cls)][1]


def uses_gradients(code):
    """Return whether a code, or what is defined in it, takes or applies gradients by name."""
    return not GRADIENTS.isdisjoint(names_of(code))


def names_of(code):
    """Return the names that a code uses, and what is defined in it."""
    codes, names = [code], set()
    while codes:
        one = codes.pop()
        names.update(one.co_names)
        names.update(one.co_freevars)
        codes.extend(const for const in one.co_consts if hasattr(const, "co_names"))
    return names


def is_compiled(kind):
    """Return whether a type is a library's one of compiled functions."""
    return read.name_of(kind) in COMPILED and read.package_of(kind) in read.LIBRARIES


def described(found, owner=None):
    """Describe a called object: its type; of a built-in function the module or the type that it is
    of; whether it is compiled, or calls a compiled function; and if so, whether it takes gradients.
    A method of an extension module, such as all of `numpy.random`, is a built-in function, too.
    `owner` is the object whose method it is."""
    kind = type(found)
    method = type(found.__func__) if kind is read.types.MethodType else None
    extension = method not in (None, read.types.FunctionType)
    row = {"type": read.rooted(method if extension else kind)}
    if (kind is read.types.BuiltinFunctionType or extension) and found.__self__ is not None:
        of = found.__self__
        row["of"] = of.__name__ if type(of) is read.types.ModuleType else read.rooted(type(of))
    elif read.name_of(kind) == "cython_function_or_method":
        row["of"] = str(found.__module__)
    if is_compiled(kind):
        inner = getattr(found, "__wrapped__", None) or getattr(found, "python_function", None)
        row["compiled"] = True
        row["learns"] = inner is not None and takes_gradients(inner, 4, set(), owner)
    elif kind is read.types.FunctionType:
        names, scope = names_of(found.__code__), globals_of(found)
        named = [scope[name] for name in names if name in scope]
        named += [read.attribute_of(owner, name) for name in names] if owner is not None else []
        compiled = [one for one in named if is_compiled(type(one))]
        if compiled:
            row["calls_compiled"] = True
            row["learns"] = any(described(one, owner)["learns"] for one in compiled)
    return row


def globals_of(function):
    """Return the global and the enclosed variables that a function sees."""
    scope = dict.copy(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            scope[name] = cell.cell_contents
        except ValueError:
            pass
    return scope


def takes_gradients(function, depth, seen, owner=None):
    """Return whether the code of a function takes gradients, looking into what it calls: functions
    that it knows by name, and methods of `owner` or of its class. Libraries take none by
    themselves."""
    kind = type(function)
    if kind is read.types.MethodType or kind in (staticmethod, classmethod):
        inner = function.__func__
    elif kind is partial:
        inner = function.func
    elif is_compiled(kind):
        inner = getattr(function, "__wrapped__", None)
    else:
        inner = function.__dict__.get("__wrapped__") if kind is read.types.FunctionType else None
    if inner is not None:
        return takes_gradients(inner, depth, seen, owner)
    if kind is not read.types.FunctionType or id(function.__code__) in seen or not depth:
        return False
    module = dict.get(function.__globals__, "__name__")
    if type(module) is str and module.split(".")[0] in read.LIBRARIES:
        return False
    seen.add(id(function.__code__))
    names, scope = names_of(function.__code__), globals_of(function)
    if names & GRADIENTS:
        return True
    called = [scope[name] for name in names if name in scope]
    if owner is not None:
        cls = owner if issubclass(type(owner), type) else type(owner)
        called += [read.in_class(cls, name) for name in names]
    return any(takes_gradients(one, depth - 1, seen, owner) for one in called)
