"""The user's own folders, as the XDG Base Directory Specification places them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from flatout_explain.errors import FlatoutError


def user_folder(kind: Literal["cache", "config"]) -> Path:
    """Return Flatout's folder in the user's cache (``$XDG_CACHE_HOME``, by default ``~/.cache``) or
    configuration (``$XDG_CONFIG_HOME``, by default ``~/.config``).

    A relative path in one of these variables is ignored, as the specification demands: it would
    lead into the working folder, which may be somebody else's. Compiled programs are loaded from
    the cache, and the key of signatures is in the configuration.

    Raises:
        FlatoutError: the user has no home folder.
    """
    variable = f"XDG_{kind.upper()}_HOME"
    base = os.environ.get(variable, "")
    if not os.path.isabs(base):
        base = os.path.expanduser(f"~{os.sep}.{kind}")
    if not os.path.isabs(base):
        raise FlatoutError(
            f"there is no home folder: set HOME or {variable} to an absolute path "
            f"(HOME is {os.environ.get('HOME')!r})."
        )
    return Path(base) / "flatout"
