"""Describes frames, classes and objects of the observed program: they are read, never run.

Nothing is imported later than at the start: the program may be in the middle of importing the same
module.
"""

import ast
import re
import types
import warnings
from bisect import bisect_right
from dis import findlinestarts
from functools import partial
from gc import get_referents
from itertools import islice

from _flatout_own import __builtins__, kept, source_line, sys  # noqa: F401

ast, types = kept(ast), kept(types)
ATTRIBUTES = (
    "step", "reset", "sample", "add", "push", "append", "store", "insert", "remember", "put",
    "zero_grad", "forward", "parameters", "learn", "update", "act", "predict", "__getitem__",
    "__len__", "__iter__", "__next__", "action_space", "observation_space", "apply_gradients",
    "render", "sample_batch", "train", "state_dict",
)  # fmt: skip
"""Attributes by which a class is recognised."""

GRADIENTS = {
    "grad", "value_and_grad", "vjp", "linearize", "apply_updates", "apply_gradients", "minimize",
    "GradientTape", "gradient", "backward", "filter_grad", "filter_value_and_grad",
}  # fmt: skip
"""Names in the code of a compiled function that learns."""

LIBRARIES = (
    "torch", "jax", "jaxlib", "tensorflow", "keras", "optax", "flax", "haiku", "equinox",
    "builtins",
)  # fmt: skip
"""Classes that can learn, and do so only where the program asks for it."""

COMPILED = ("PjitFunction", "CompiledFunction", "_JitWrapper", "Function", "JitWrapped", "JitFn")
"""Types of compiled functions: JAX's, Equinox's, TensorFlow's, Flax's."""

ARRAYS = ("numpy", "torch", "jax", "jaxlib", "tensorflow")
CALLED = re.compile(r"([A-Za-z_][\w.]*)\s*\(")
WORDS = ("if", "while", "for", "return", "and", "or")
SNAPSHOTS = {"locals", "vars", "dir", "eval", "exec"}
IGNORED = [("ignore", None, Warning, None, 0)]
COUNTED = {}  # id of a function that counts its calls -> (it, the function that it calls)
LINES = {}  # id of a code -> where its lines begin, and which they are
LEARNERS = {}  # id of a class -> (class, whether it learns): no id is used twice


def thread_attribute(ident, name):
    """An attribute of a thread that `threading` knows (``_name``, ``_native_id``), or None."""
    return attribute_of((loaded("threading", "_active") or {}).get(ident), name)


def parsed(text, mode="exec"):
    """The syntax tree of a source, without Python's warnings about it.

    `warnings.catch_warnings` would make the program's own warnings appear once more.
    """
    before, warnings.filters = warnings.filters, IGNORED
    try:
        return compile(text, "<unknown>", mode, ast.PyCF_ONLY_AST)
    finally:
        warnings.filters = before


def line_of(code, lasti):
    """The line of an instruction."""
    table = LINES.get(id(code))
    if table is None:
        starts = [(at, line) for at, line in findlinestarts(code) if line is not None]
        table = LINES[id(code)] = ([at for at, _ in starts], [line for _, line in starts])
    at = bisect_right(table[0], lasti)
    return table[1][at - 1] if at else code.co_firstlineno


def local_of(frame, name, profiled):
    """One local variable of a running frame; None where reading it could change the program.

    Until Python 3.12 a frame has one dictionary for all who ask for its values: what the program
    got from ``locals()`` is that very one, so it is left alone. One that is made for us would keep
    the values alive: it is emptied, unless a profile function is at work, after which the
    interpreter copies the dictionary back.
    """
    if not frame.f_code.co_flags & 0x2:  # a class's may be of its metaclass's making
        values = frame.f_locals
        return dict.get(values, name) if issubclass(type(values), dict) else None
    if sys.version_info >= (3, 13):
        return frame.f_locals.get(name)
    if not SNAPSHOTS.isdisjoint(frame.f_code.co_names):
        return None
    before = [id(one) for one in get_referents(frame) if type(one) is dict]
    values = frame.f_locals
    value = values.get(name)
    if not profiled and id(values) not in before:
        values.clear()
    return value


MODULE = type.__dict__["__module__"].__get__
ARGS = BaseException.__dict__["args"].__get__
TEXT = 300  # characters of an exception


def name_of(cls):
    """The name of a class."""
    return type.__getattribute__(cls, "__name__")


def order_of(cls):
    """A class and its bases, without calling anything that its metaclass defines."""
    return type.__getattribute__(cls, "__mro__")


def defined_in(cls):
    """The names that a class itself defines, with their values."""
    return type.__getattribute__(cls, "__dict__")


def module_of(cls):
    """The name of a class's module, by `type` itself and not by what the class says."""
    try:
        module = MODULE(cls)
    except AttributeError:
        return ""
    return module if type(module) is str else ""


def offers(cls, name):
    """Whether a class or one of its bases defines a name."""
    return any(name in defined_in(base) for base in order_of(cls))


def class_of(owner, method):
    """Describe an object's class: name, module, roots of its bases, attributes."""
    kind = type(owner)
    if owner is None or issubclass(kind, (int, float, str, bytes, list, tuple, dict)):
        return None
    cls = owner if issubclass(kind, type) else kind
    if not offers(cls, method):
        return None  # a function that is given one, not its method
    bases = [rooted(base) for base in order_of(cls)[:-1]]
    has = [name for name in ATTRIBUTES if offers(cls, name)]
    return {"name": name_of(cls), "module": module_of(cls), "bases": bases[:12], "has": has,
            "learns": any(map(class_learns, order_of(cls)))}  # fmt: skip


def rooted(cls):
    """The name of a class with its topmost package."""
    return "%s.%s" % (package_of(cls), name_of(cls))


def package_of(cls):
    """The topmost package of a class."""
    return module_of(cls).split(".")[0]


def class_learns(cls):
    """Whether a method of a class takes gradients, whatever it inherits."""
    if package_of(cls) in LIBRARIES:
        return False
    found = LEARNERS.get(id(cls))
    if found is None:
        methods = [
            value.__func__ if type(value) in (staticmethod, classmethod) else value
            for value in list(defined_in(cls).values())
        ]
        codes = [method.__code__ for method in methods if type(method) is types.FunctionType]
        found = LEARNERS[id(cls)] = (cls, any(map(uses_gradients, codes)))
    return found[1]


def uses_gradients(code):
    """Whether a code, or what is defined in it, takes or applies gradients by name."""
    return not GRADIENTS.isdisjoint(names_of(code))


def names_of(code):
    """The names that a code uses, and what is defined in it."""
    codes, names = [code], set()
    while codes:
        one = codes.pop()
        names.update(one.co_names)
        names.update(one.co_freevars)
        codes.extend(const for const in one.co_consts if hasattr(const, "co_names"))
    return names


def is_compiling(file, name):
    """2: a function of a library that traces or compiles; 1: one inside of which it may; else 0."""
    file = file.replace("\\", "/")
    if "/jax/_src/" in file:
        if name == "cache_miss":
            return 1
        return 2 * (name in (
            "trace_to_jaxpr", "_trace_for_jit", "backend_compile", "backend_compile_and_load",
            "compile_or_get_cached", "from_hlo", "lower_jaxpr_to_module", "xla_primitive_callable",
            "lower_sharding_computation", "_create_pjit_jaxpr",
        ))  # fmt: skip
    if "/torch/_dynamo/" in file:
        return 2 * (name in ("_compile", "compile_inner", "_compile_inner"))
    if "/torch/_inductor/" in file:
        return 2 * (name in ("compile_fx", "compile_fx_inner"))
    if "/tensorflow/python/eager/polymorphic_function/" in file:
        return 2 * (name in ("trace_function", "_maybe_define_function", "_initialize"))
    return 2 * ("/numba/core/" in file and name in ("compile", "compile_extra"))


def kind_of(file, name, owner):
    """Which calls of the main thread are worth a closer look in a window."""
    file = file.replace("\\", "/")
    if file.endswith("/torch/nn/modules/module.py") and name in (
        "_call_impl", "_wrapped_call_impl", "__call__",
    ):  # fmt: skip
        return "network"
    if file.endswith("/tensorflow/python/client/session.py") and name == "run":
        return "session"
    if "/keras/" in file and name == "__call__" and file.endswith(("layer.py", "base_layer.py")):
        return "network"
    if owner is None:
        return None
    has = owner["has"]
    if name == "step" and ("zero_grad" in has or "apply_gradients" in has):
        return "optimiser"
    if name in ("step", "step_wait") and "reset" in has and "zero_grad" not in has:
        return "env"
    if name.startswith("sample") and "sample" in has:
        return "sample"
    return None


def shape_of(value):
    """The shape of an array of a known library; None of anything else."""
    if package_of(type(value)) not in ARRAYS:
        return None
    shape = getattr(value, "shape", None)
    return None if shape is None else tuple(shape)


def items_of(value):
    """The items of a plain dictionary, list or tuple."""
    if type(value) is dict:
        return list(value.values())
    return list(value) if type(value) in (list, tuple) else []


def given_to(kind, frame):
    """Describe the arguments of a relevant call: [class, batch size, gradients on]."""
    values = frame.f_locals
    code = frame.f_code
    owner = values.get(code.co_varnames[0])
    batch, grad = None, None
    if kind == "network":
        found = []
        for some in (values.get("args"), values.get("kwargs"), values.get("inputs")):
            found.extend(items_of(some) or [some])
        shape = next(filter(lambda one: one is not None, map(shape_of, found)), None)
        if shape is not None:
            batch = int(shape[0]) if len(shape) > 1 else 1
        enabled = built_in("torch", "is_grad_enabled")
        if enabled is not None:
            grad = bool(enabled())
    elif kind == "session":
        fetches = values.get("fetches")
        names = [name_of(type(one)) for one in items_of(fetches) or [fetches]]
        grad = "Operation" in names
        for value in items_of(values.get("feed_dict")):
            shape = shape_of(value)
            size = shape[0] if shape else len(items_of(value)) or 1
            batch = max(batch or 1, int(size))
    return [name_of(type(owner)), batch, grad]


def kinds_of(values):
    """Kinds of a tuple's elements: o(bservation), n(umber), b(ool), N, B (arrays of those), ?."""
    kinds = []
    for value in values[:6]:
        kind = name_of(type(value))
        if kind.endswith("Storage"):  # PyTorch warns of whoever asks one for its dtype
            kinds.append("?")
            continue
        shape = shape_of(value)
        dtype = "" if shape is None else str(getattr(value, "dtype", ""))
        if kind in ("bool", "bool_") or (dtype == "bool" and shape == ()):
            kinds.append("b")
        elif kind in ("int", "float") or (dtype and shape == ()):
            kinds.append("n")
        elif dtype == "bool" and len(shape) == 1:
            kinds.append("B")
        elif dtype and len(shape) == 1:
            kinds.append("N")
        elif kind in ("list", "tuple", "dict", "OrderedDict") or shape is not None:
            kinds.append("o")
        else:
            kinds.append("?")
    return "".join(kinds)


def text_at(code, lasti):
    """The source text of the instruction and the name of what it calls, as far as known."""
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
    """(text, dotted name of the call that the text is) by the program's own grammar."""
    try:
        node = parsed("(" + text + "\n)", "eval").body
    except (SyntaxError, ValueError):
        return text.strip()[:200], first_call(text)
    if isinstance(node, ast.Call):
        return text[:200], dotted(node.func)
    if isinstance(node, ast.BinOp):
        return text[:200], "@" if isinstance(node.op, ast.MatMult) else "+"
    if isinstance(node, ast.Subscript):
        return text[:200], "[]"
    return text[:200], None


def dotted(node):
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return "%s.%s" % (inner, node.attr) if inner else "?." + node.attr
    return "?"


def first_call(text):
    """The first call on a line, where the interpreter does not say which one it is."""
    return next((name for name in CALLED.findall(text) if name not in WORDS), None)


def in_class(cls, name):
    """The value of a name in a class or the first of its bases that defines it, or None."""
    found = next((d[name] for d in map(defined_in, order_of(cls)) if name in d), None)
    return found.__func__ if type(found) in (staticmethod, classmethod) else found


def attribute_of(value, name):
    """An attribute of an object or of its class, or None, without calling anything of the program.

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


def resolve(frame, dotted, profiled):
    """The object of a dotted name in a frame, without running anything of the program."""
    first, *words = dotted.split(".")
    found = local_of(frame, first, profiled)
    if found is None:
        found = dict.get(frame.f_globals, first)
    return attribute_at(found, words)


def attribute_at(found, words):
    """Follow a chain of attributes with `attribute_of`; return the last one, or None."""
    for word in words:
        found = attribute_of(found, word)
    return COUNTED[id(found)][1] if id(found) in COUNTED else found


def is_compiled(kind):
    """Whether a type is a library's one of compiled functions."""
    return name_of(kind) in COMPILED and package_of(kind) in LIBRARIES


def described(found, owner=None):
    """Describe a called object: its type; whether it is compiled, or calls a compiled function; and
    if so, whether it takes gradients. `owner` is the object whose method it is."""
    kind = type(found)
    row = {"type": rooted(kind)}
    if is_compiled(kind):
        inner = getattr(found, "__wrapped__", None) or getattr(found, "python_function", None)
        row["compiled"] = True
        row["learns"] = inner is not None and takes_gradients(inner, 4, set(), owner)
    elif kind is types.FunctionType:
        names, scope = names_of(found.__code__), globals_of(found)
        named = [scope[name] for name in names if name in scope]
        named += [attribute_of(owner, name) for name in names] if owner is not None else []
        compiled = [one for one in named if is_compiled(type(one))]
        if compiled:
            row["calls_compiled"] = True
            row["learns"] = any(described(one, owner)["learns"] for one in compiled)
    return row


def globals_of(function):
    """The global and the enclosed variables that a function sees."""
    scope = dict.copy(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            scope[name] = cell.cell_contents
        except ValueError:
            pass
    return scope


def takes_gradients(function, depth, seen, owner=None):
    """Whether the code of a function takes gradients, looking into what it calls: functions that it
    knows by name, and methods of `owner` or of its class. Libraries take none by themselves."""
    kind = type(function)
    if kind is types.MethodType or kind in (staticmethod, classmethod):
        inner = function.__func__
    elif kind is partial:
        inner = function.func
    elif is_compiled(kind):
        inner = getattr(function, "__wrapped__", None)
    else:
        inner = function.__dict__.get("__wrapped__") if kind is types.FunctionType else None
    if inner is not None:
        return takes_gradients(inner, depth, seen, owner)
    if kind is not types.FunctionType or id(function.__code__) in seen or not depth:
        return False
    module = dict.get(function.__globals__, "__name__")
    if type(module) is str and module.split(".")[0] in LIBRARIES:
        return False
    seen.add(id(function.__code__))
    names, scope = names_of(function.__code__), globals_of(function)
    if names & GRADIENTS:
        return True
    called = [scope[name] for name in names if name in scope]
    if owner is not None:
        cls = owner if issubclass(type(owner), type) else type(owner)
        called += [in_class(cls, name) for name in names]
    return any(takes_gradients(one, depth - 1, seen, owner) for one in called)


def loaded(module, name):
    """The value of a name in a module that the program has imported, or None."""
    module = sys.modules.get(module)
    return module.__dict__.get(name) if type(module) is types.ModuleType else None


def ended_by():
    """The type and text of the exception that ends the program, or None; an empty text where it is
    no plain one."""
    error = loaded("sys", "last_value")
    kind = type(error)
    if not issubclass(kind, BaseException):
        return None
    given = ARGS(error)
    text = given[0][:TEXT] if given and type(given[0]) is str else ""
    return ["%s.%s" % (module_of(kind), name_of(kind)), text]


def built_in(module, name):
    """A built-in function of a module, unless the program has replaced it."""
    found = loaded(module, name)
    return found if type(found) is types.BuiltinFunctionType else None


def dynamo_used():
    """Whether functions were compiled by TorchDynamo: a profile function could disturb it."""
    return bool(dict.get(loaded("torch._dynamo.utils", "counters") or {}, "frames"))
