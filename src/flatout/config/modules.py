"""Import of environments and algorithms that a setting names as ``module:function``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from flatout.config.own_code import import_path, own_code
from flatout.errors import EnvironmentFailure, UsageError, nearest, with_full_stop

LIBRARIES = ("gymnax", "envelope")
"""Libraries whose environments are named ``gymnax:NAME`` and ``envelope:SUITE::NAME``; of a
library, only the names in its list are looked up."""

POOL = "envpool"
"""The package whose environments are named ``envpool:NAME``."""

PASSED = "(...)"
"""The end of a name that stands for an object of a Python program, which no name finds again."""


class OwnModules:
    """Finds modules that the user's code imports where that code lies, like Python's scripts.

    The working folder is at the end of `sys.path`, so that a file there does not take the place of
    a module that a library imports. But a module that the user's own code names is the user's own,
    also if an installed one has the same name.
    """

    def __init__(self) -> None:
        self._paths = dict[str, tuple[str, ...]]()

    @staticmethod
    def add(module: str, path: Sequence[str]) -> None:
        """Find a module, and those of the user's that it imports, along a path."""
        own = next((each for each in sys.meta_path if isinstance(each, OwnModules)), None)
        if own is None:
            own = OwnModules()
            sys.meta_path.insert(sys.meta_path.index(PathFinder), own)
        names = [name for name, _ in own_code([module], path) if "." not in name]
        own._paths |= dict.fromkeys(names, tuple(path))

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        """Find one of these modules; Python's import system calls this."""
        search = self._paths.get(name)
        return None if search is None else PathFinder.find_spec(name, search, target)


def look_here() -> None:
    """Add the working folder to the end of `sys.path`, except under Python's ``-P``, as in actor
    processes: the parent process sets their path."""
    here = os.getcwd()
    if here not in sys.path and not sys.flags.safe_path:
        sys.path.append(here)


def import_module(module: str, setting: str) -> Any:
    """Import and return a module, which may lie in the working folder.

    Args:
        setting: the setting that names the module, for messages.

    Raises:
        UsageError: the module, or one that it imports, does not exist.
        EnvironmentFailure: importing it raises any other error.
    """
    if module not in sys.modules:
        OwnModules.add(module, import_path())
        look_here()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        own = f"{module}.".startswith(f"{missing}.")  # the module itself, or a package above it
        where = f" (imported by {module})"
        if own:
            where = f" in {os.getcwd()} or in Python's path"
            if module.endswith(".py"):
                where = f"; leave out .py: {module.removesuffix('.py')}:NAME"
        # If the module exists, the traceback shows which of its imports is missing.
        cause = None if own else error
        raise UsageError(f"{setting}: there is no module {missing!r}{where}.") from cause
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise EnvironmentFailure(
            f"{setting}: importing {module} failed: {type(error).__name__}: {with_full_stop(error)}"
        ) from error


def import_named(name: str, setting: str) -> tuple[Any, str]:
    """Import the module of ``module:function``; return it and the function's name.

    Args:
        setting: the setting that has this value, for messages.

    Raises:
        UsageError: the text has another form. Also raises as `import_module`.
    """
    module, _, function = name.partition(":")
    if not module or not function:
        raise UsageError(f"{setting} is not module:function.")
    return import_module(module, setting), function


def import_function(name: str, setting: str) -> Callable[..., Any]:
    """Import what ``module:function`` names; raises as `import_named` and `function_in`."""
    return function_in(*import_named(name, setting), setting)


def function_in(module: Any, function: str, setting: str) -> Callable[..., Any]:
    """Return the function of this name in an imported module.

    Raises:
        UsageError: the module has no such function, or the name is not callable.
    """
    found = getattr(module, function, None)
    if not callable(found):
        near = nearest(function, [n for n, value in vars(module).items() if callable(value)])
        raise UsageError(f"{setting}: {module.__name__} has no function {function!r}.{near}")
    return found
