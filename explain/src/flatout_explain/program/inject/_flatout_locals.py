"""Reads local variables of running frames, and leaves the frames as they are.

``frame.f_locals`` changes a function's frame until Python 3.12. It stores a dictionary of all
values in the frame, which keeps them alive, and which the program may hold as well. After a profile
or trace function the interpreter copies that dictionary back into the variables, so that emptying
it would unset them. `f_locals` is therefore read only of modules and classes, which have no other
variables. Those of functions are read one by one:

- from Python 3.12 on by the interpreter's `PyFrame_GetVar`;
- before, from the memory in which the frame stores them. The position of the first one is looked up
  once, in a frame whose variables are known. If it is not found, no variable is read.
"""

from _flatout_own import __builtins__, ctypes, sys  # noqa: F401

FUNCTION = 0x2  # flag of a code whose variables are a function's
MOST_WORDS = 64  # of a frame's memory, before its variables
CELL = type((lambda value: lambda: value)(None).__closure__[0])


def local_of(frame, name):
    """Return a local variable of a running frame; None if it has no value or cannot be read."""
    code = frame.f_code
    if not code.co_flags & FUNCTION:  # a class's may be of its metaclass's making
        values = frame.f_locals
        return dict.get(values, name) if issubclass(type(values), dict) else None
    if READ is None or all(name not in some for some in names_in(code)):
        return None
    return READ(frame, name)


def names_in(code):
    """Return the names of a function's variables: its own, those that inner functions share, outer
    ones."""
    return code.co_varnames, code.co_cellvars, code.co_freevars


def by_interpreter():
    """Return a function that reads a variable in Python 3.12 and later."""
    get = ctypes.pythonapi["PyFrame_GetVar"]  # a new object: the program's own is not changed
    get.restype, get.argtypes = ctypes.py_object, [ctypes.py_object] * 2

    def value(frame, name):
        try:
            return get(frame, name)
        except NameError:  # it has none yet
            return None

    return value


class Memory:
    """Reads variables from the memory of a frame, until Python 3.11."""

    def __init__(self):
        self.slots = ctypes.POINTER(ctypes.py_object)
        self.word = ctypes.sizeof(ctypes.c_void_p)
        self.outside = sys.version_info >= (3, 11)  # the frame's object has a pointer to the memory
        self.first = None  # number of words before the first variable
        self.find("given", "other", "shared")

    def find(self, given, other, shared, absent=None):
        """Look up where this frame has its variables, and whether they can be read there."""
        del absent
        frame = sys._getframe()

        def inner():
            return shared

        start, ids = self.start(frame).value, [id(self), id(given), id(other)]
        for words in range(MOST_WORDS):
            found = []
            for more in range(len(ids)):
                address = start + (words + more) * self.word
                found.append(ctypes.c_void_p.from_address(address).value)
            if found == ids:
                self.first = words
                break
        known = {"given": given, "shared": shared, "inner": inner, "absent": None}
        for name, value in known.items():
            if self.first is not None and self.value(frame, name) is not value:
                self.first = None

    def start(self, frame):
        """Return the address of a frame's memory, as a `c_void_p` that changes when it is moved."""
        if not self.outside:
            return ctypes.c_void_p(id(frame))
        return ctypes.c_void_p.from_address(id(frame) + object.__basicsize__ + self.word)

    def value(self, frame, name):
        """Return a variable of a frame; None if it has no value."""
        own, shared, outer = names_in(frame.f_code)
        if self.outside:  # an argument that inner functions share is stored once
            shared = tuple(one for one in shared if one not in own)
        found = None
        for place, one in enumerate(own + shared + outer, self.first):
            if one == name and found is None:
                found = self.at(frame, place)
        return found

    def at(self, frame, place):
        """Return the object at a position of a frame's memory; for a cell, its content."""
        start, here = self.start(frame), ctypes.c_void_p()
        slots = self.slots.from_buffer(here)  # the objects at the address that is in `here`
        try:
            # No call and no new container: no other thread runs, which could end the frame.
            here.value = start.value
            found = slots[place]
        except ValueError:
            return None
        if type(found) is not CELL:
            return found
        try:
            return found.cell_contents
        except ValueError:
            return None


def reader():
    """Return the function that reads a variable of a frame; None if that is impossible."""
    if ctypes is None or sys.implementation.name != "cpython":
        return None
    try:
        if sys.version_info >= (3, 12):
            return by_interpreter()
        memory = Memory()
        return None if memory.first is None else memory.value
    except Exception:  # another build of Python
        return None


READ = reader()
