"""Modules that a setting names as ``module:function``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flatout.errors import EnvironmentFailure, UsageError, nearest, one_line


def look_here() -> None:
    """Look for modules in the working folder, too. With Python's -P, as in actor processes, they
    are only looked for where it says."""
    here = str(Path.cwd())
    if here not in sys.path and not sys.flags.safe_path:
        sys.path.insert(0, here)


def import_module(module: str, setting: str) -> Any:
    """A module of the user's, looked for in the working folder, too.

    Args:
        setting: what names it, for messages.

    Raises:
        UsageError: there is none.
        EnvironmentFailure: importing it fails.
    """
    if module not in sys.modules:
        look_here()
        importlib.invalidate_caches()  # it may have been written a moment ago
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        own = f"{module}.".startswith(f"{missing}.")  # or a package that it lies in
        where = "" if own else f" (imported by {module})"
        # Of a module that is there, the traceback says where it imports what is missing.
        cause = error if where else None
        raise UsageError(f"{setting}: there is no module {missing!r}{where}.") from cause
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise EnvironmentFailure(
            f"{setting}: importing {module} failed: {type(error).__name__}: "
            f"{one_line(error).rstrip('.')}."
        ) from error


def import_named(name: str, setting: str) -> tuple[Any, str]:
    """The module of ``module:function``, imported, and the function's name; raises as
    `import_module`.

    Args:
        setting: what names it, for messages.

    Raises:
        UsageError: the text has another form.
    """
    module, _, function = name.partition(":")
    if not module or not function:
        raise UsageError(f"{setting} is not module:function.")
    return import_module(module, setting), function


def import_function(name: str, setting: str) -> Callable[..., Any]:
    """The function that ``module:function`` names; raises as `import_named` and `function_in`."""
    return function_in(*import_named(name, setting), setting)


def function_in(module: Any, function: str, setting: str) -> Callable[..., Any]:
    """The function of this name in an imported module.

    Raises:
        UsageError: the module has no such function.
    """
    found = getattr(module, function, None)
    if not callable(found):
        near = nearest(function, [n for n, value in vars(module).items() if callable(value)])
        raise UsageError(f"{setting}: {module.__name__} has no function {function!r}.{near}")
    return found
