"""Modules that a setting names as ``module:function``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from flatout.errors import EnvironmentFailure, UsageError, one_line


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
