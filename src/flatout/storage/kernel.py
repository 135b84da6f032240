"""Small files that the kernel makes: /proc and /sys."""

from __future__ import annotations


def kernel_text(path: str) -> str:
    """A file's text; empty if it is gone or may not be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode("ascii", "replace")
    except OSError:
        return ""
