"""Python's functions as they are before the program can replace them: the probe calls no others.

A program may set ``time.time``, ``os.open`` or ``builtins.open`` to functions of its own. Modules
of the probe take such modules, and Python's built-in functions (`__builtins__`), from here.
"""

import _signal
import _thread
import builtins
import json.encoder
import linecache
import os
import sys
import time
from stat import S_ISREG
from types import SimpleNamespace

__builtins__ = dict(builtins.__dict__)


def kept(module):
    """Return a module's names with their values at the start."""
    return SimpleNamespace(**module.__dict__)


_thread, os, signal, sys, time = map(kept, (_thread, os, _signal, sys, time))
try:
    import ctypes

    ctypes = kept(ctypes)
except ImportError:
    ctypes = None
try:
    STARTED = os.getcwd()
except OSError:  # it has been removed
    STARTED = ""


def stand_still(file):
    """Stop these clocks while `explain --against` holds the program.

    The file has the nanoseconds for which it was held so far; they change while it is held.
    """
    import mmap

    descriptor = os.open(file, os.O_RDONLY)
    try:
        held = mmap.mmap(descriptor, 8, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)

    def running(clock):
        def now():
            while True:
                before = held[:8]
                t = clock()
                if held[:8] == before:  # else it was held just now
                    return t - 1e-9 * int.from_bytes(before, "little")

        return now

    time.monotonic, time.perf_counter = map(running, (time.monotonic, time.perf_counter))


CPU = getattr(time, "thread_time", time.process_time)
STDLIB = os.path.dirname(os.__file__)
MOST_BYTES = 1 << 20  # larger files are data
SOURCES = {}  # file -> its lines


def encoder():
    """Return a function that encodes a value as JSON."""
    make, quoted = json.encoder.c_make_encoder, json.encoder.encode_basestring_ascii
    if make is None:  # PyPy's is another
        return json.JSONEncoder(default=str).encode
    parts = make(None, str, quoted, None, ": ", ", ", False, False, True)
    return lambda value: "".join(parts(value, 0))


json_of = encoder()


def read(file, most=1024):
    """Return the first bytes of a file; raise an `OSError` if it cannot be read."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)


def libraries():
    """Return the packages that are a program's tools, by what they are: Flatout's own table."""
    folder = os.path.dirname(os.path.abspath(__file__))
    table = json.loads(read(os.path.join(folder, "libraries.json"), MOST_BYTES).decode())
    return {kind: frozenset(names) for kind, names in table.items()}


TABLE = libraries()
LIBRARIES = frozenset().union(*TABLE.values())
"""Packages whose lines are not the user's, and that take gradients only where these ask for it."""


def source_lines(file):
    """Return the lines of a source file; none unless it is a regular file of sensible size."""
    if file not in SOURCES:
        text = source_of(file).lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        SOURCES[file] = text.split("\n") if text else []
    return SOURCES[file]


def full_path(file):
    """Return the full path of a file, relative to the folder where the program was started."""
    absolute = file[:1] in ("/", "\\") or file[1:2] == ":"
    return file if absolute else "%s/%s" % (STARTED, file)


def source_of(file):
    """Return the text of a source file."""
    cell = dict.get(linecache.cache, file, ())
    if len(cell) == 4:  # a notebook's, which is no file
        return "".join(cell[2])
    file = full_path(file)  # the program may have changed its folder since
    try:
        found = os.stat(file)
        regular = S_ISREG(found.st_mode) and found.st_size <= MOST_BYTES
        data = read(file, MOST_BYTES) if regular else b""
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")  # what matters is ASCII
    except (OSError, ValueError):
        return ""


def source_line(file, number):
    """Return a line of a source file; an empty text without such a line."""
    return next(iter(source_lines(file)[max(number - 1, 0) : number]), "")
