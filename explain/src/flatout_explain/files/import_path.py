"""The folders from which this process imports: a run's folder is data, and none of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def keep_out(folder: Path) -> None:
    """Keep this process and its children from importing from a folder that is data.

    What Python, Flatout and this tool themselves were started from stays.
    """
    root = os.path.realpath(folder)
    files = [getattr(sys.modules.get(name), "__file__", None) for name in OURS]
    prefixes = [sys.prefix, sys.base_prefix, *(Path(file).parents[1] for file in files if file)]
    started = [os.path.realpath(prefix) for prefix in prefixes]

    def inside(entry: str) -> bool:
        return lies_in(entry, root) and not any(lies_in(entry, prefix) for prefix in started)

    sys.path[:] = [entry for entry in sys.path if not inside(entry)]
    listed = os.environ.get("PYTHONPATH")
    if listed:
        kept = [entry for entry in listed.split(os.pathsep) if not inside(entry)]
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)


OURS = ("flatout_explain", "flatout")
"""Packages that may run in this process from a checkout."""


def lies_in(path: str, root: str) -> bool:
    """Whether a path (empty: the working folder) is `root` or below it; `root` has no links."""
    real = os.path.realpath(path or ".")
    return real == root or real.startswith(root.rstrip(os.sep) + os.sep)
