"""Functions that child processes call: a module that imports nothing which they do not need."""

from __future__ import annotations

import json
import sys


def show() -> None:
    """Print the module path and the arguments of a child process, which calls this function."""
    print(json.dumps([sys.path, sys.argv[1:]]))


def fail() -> int:
    """Fail in a child process, which calls this function."""
    print("a warning\nflatout: the reason", file=sys.stderr)
    return 3
