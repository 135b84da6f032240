"""Finds learning calls whose results JAX's device still computes, by the arrays that they made."""

from functools import partial

import _flatout_describe as read
from _flatout_flow import Search
from _flatout_gradients import described, globals_of
from _flatout_locals import local_of
from _flatout_own import __builtins__  # noqa: F401
from _flatout_source import is_users

CALLERS = 12  # frames in which results of learning are looked for
DEPTH = 4  # containers in which an array is looked for


def pending(frame, known):
    """Return code and line of a learning call whose result JAX's device still computes, or None.

    Looks at the arrays that the frame and its callers have assigned from such calls, and at those
    that other methods of the same objects have. `known` keeps, by id, each function and class with
    what learning calls make in it.
    """
    for _ in range(CALLERS):
        if frame is None:
            return None
        code = frame.f_code
        if is_users(code.co_filename):
            if id(code) not in known:
                known[id(code)] = code, Search(code, partial(read.resolve, frame)).learned()
            for name, line in known[id(code)][1].items():
                if unready(read.resolve(frame, name)):
                    return code, line
            owner = owner_of(frame)
            for method, line, names in by_methods(owner, known) if owner is not None else ():
                if unready(read.attribute_at(owner, names)):
                    return method, line
        frame = frame.f_back
    return None


def owner_of(frame):
    """Return the object of the user's whose method a frame runs, or None."""
    code = frame.f_code
    if not code.co_argcount or code.co_varnames[0] != "self":
        return None
    found = local_of(frame, "self")
    return None if found is None or read.package_of(type(found)) in read.LIBRARIES else found


def by_methods(owner, known):
    """Return rows [code, line, names] for the attributes (`names` is their chain) that an object's
    methods assign from learning calls."""
    cls = type(owner)
    if id(cls) not in known:
        known[id(cls)] = cls, []  # first: a class that cannot be read is not tried again
        defined = {}  # without overridden methods
        for base in read.order_of(cls):
            defined = dict(read.defined_in(base), **defined)
        for method in defined.values():
            if type(method) is read.types.FunctionType and is_users(method.__code__.co_filename):
                known[id(cls)][1].extend(assigned_by(method, owner))
    return known[id(cls)][1]


def assigned_by(method, owner):
    """Return the rows of one method, for `by_methods`, if it names a compiled function that
    learns."""
    code, scope = method.__code__, globals_of(method)
    if not code.co_argcount or not described(method, owner).get("learns"):
        return
    this = code.co_varnames[0]

    def object_of(dotted):
        first, *names = dotted.split(".")
        return read.attribute_at(owner if first == this else scope.get(first), names)

    for name, line in Search(code, object_of).learned().items():
        first, *names = name.split(".")
        if first == this and names:
            yield code, line, names


def unready(value):
    """Return whether a value holds a JAX array that a device still computes."""
    array = first_array(value, DEPTH)
    return array is not None and not array.is_ready()


def first_array(value, depth):
    """Return the first JAX array in a value: a tuple, list, dictionary or dataclass."""
    kind = type(value)
    if read.name_of(kind) == "ArrayImpl" and read.package_of(kind) in ("jax", "jaxlib"):
        return value
    if not depth:
        return None
    found = (first_array(one, depth - 1) for one in read.items_of(value))
    return next((one for one in found if one is not None), None)
