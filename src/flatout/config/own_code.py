"""Which files of the user's a named module runs, found without importing any of them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import site
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

_PARSING = threading.Lock()
"""Held while source is parsed: two threads that parse at once fail in Python 3.11, which counts the
depth of both in one variable."""
_INVALIDATING = threading.Lock()
"""Held while Python empties its caches of folders: two threads that do so at once, such as members
of a population, remove an entry twice, and the second removal fails with a KeyError."""


def import_path() -> list[str]:
    """Return the folders in which a module that the user names is searched.

    The working folder comes first, as for Python's scripts. Under Python's ``-P``, as in actor
    processes, the working folder counts only if the parent process has put it into `sys.path`.
    """
    here = os.getcwd()
    return list(sys.path) if sys.flags.safe_path and here not in sys.path else [here, *sys.path]


def own_code(
    modules: Iterable[str], path: Sequence[str], also: Iterable[str] = (),
    installed: set[str] | None = None,
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """Yield name and file of each module that may run when some modules are imported.

    These are the modules, the packages that they are in, and whatever their source imports, at once
    or later. Python's own modules, Flatout's and those of installed distributions are left out,
    and so is what code imports under a name that it computes. A file's imports are read only if
    the caller asks for the module after it.

    Args:
        path: where modules are searched.
        also: modules to yield without what they import.
        installed: receives the names of the installed packages that the user's modules import.
    """
    with _INVALIDATING:
        importlib.invalidate_caches()  # a file may be newer than Python's cache of its folder
    folders, known = _installed(), dict[str, ModuleSpec]()
    due, more = list(modules), list(also)
    while due or more:
        follow = bool(due)
        for name, spec in find((due or more).pop(), path, known):
            new, known[name] = name not in known, spec
            file = spec.origin if spec.has_location else None
            if file is not None and os.path.realpath(file).startswith(folders):
                if installed is not None:
                    installed.add(name.partition(".")[0])
                break
            if new and file is not None:
                yield name, file
                due += _imports(file, name, spec) if follow else ()


def find(
    name: str, path: Sequence[str], known: Mapping[str, ModuleSpec] | None = None
) -> Iterator[tuple[str, ModuleSpec]]:
    """Yield the packages around a module and the module, with their full names, as far as they
    exist; import none.

    Args:
        path: where the outermost one is searched.
        known: specs that were found before, by name.
    """
    search: Sequence[str] | None = path
    parts = name.split(".")
    for count in range(1, len(parts) + 1 if all(parts) else 0):
        part = ".".join(parts[:count])
        spec = (known or {}).get(part)
        if spec is None and search is not None:
            # By its last name: under its full name Python asks for the package in sys.modules.
            spec = PathFinder.find_spec(parts[count - 1], search)
        if spec is None and count == 1:
            with suppress(ValueError):  # a script's __main__ has none
                spec = importlib.util.find_spec(part)  # editable installations
        if spec is None:
            return
        search = folders_of(spec)
        yield part, spec


def folders_of(spec: ModuleSpec) -> list[str] | None:
    """Return the folders of a package; None of any other module."""
    folders = spec.submodule_search_locations
    # Without a package's file, this is an object that searches `sys.path` again.
    return None if folders is None else list(getattr(folders, "_path", folders))


def _imports(file: str, module: str, spec: ModuleSpec) -> Iterator[str]:
    """Yield the names of all modules that the source of a module may import."""
    names = module.split(".")
    package = names if spec.submodule_search_locations is not None else names[:-1]
    try:
        with _PARSING:
            tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # also: no source
        return
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                above = package[: len(package) - node.level + 1]
                source = ".".join([*above, *filter(None, [source])])
            yield from (f"{source}.{alias.name}" for alias in node.names if alias.name != "*")
            yield source


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield every statement, without the expressions in them, which are most of a tree."""
    due: list[ast.AST] = [tree]
    while due:
        yield (node := due.pop())
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            due += getattr(node, field, ())


def _installed() -> tuple[str, ...]:
    """Return the folders of Python, of installed distributions and of Flatout. What comes with a
    folder from elsewhere does not change them."""
    folders = [*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    folders.append(str(Path(__file__).parents[1]))
    return tuple(os.path.realpath(folder) + os.sep for folder in folders)
