"""What the operating system gives: small files in /proc and /sys, open files for children."""

from __future__ import annotations

import os

PASSES_DESCRIPTORS = os.name == "posix"
"""Whether a child process can be given sockets and memory that are open here (not on Windows)."""


def kernel_text(path: str) -> str:
    """A file's text; empty if it is gone or may not be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode("ascii", "replace")
    except OSError:
        return ""
