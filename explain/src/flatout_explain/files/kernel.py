"""Small files in /proc and /sys, and the open files that child processes get or must not get."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any
from weakref import WeakSet

PASSES_DESCRIPTORS = os.name == "posix"
"""Whether a child process can be given sockets and memory that are open here (not on Windows)."""


def kernel_text(path: str) -> str:
    """A file's text; empty if it is gone or may not be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def boot_id() -> str:
    """A random text that is the same until the machine is started again; empty if unknown."""
    return kernel_text("/proc/sys/kernel/random/boot_id").strip()


_private_files: WeakSet[Any] = WeakSet()
_private_numbers: set[int] = set()


def close_in_children(*files: Any) -> None:
    """Keep children of this process from holding these files open.

    A lock, and the end of a socket or pipe, last as long as any process holds the open file. User
    code may fork children that outlive this process. In such a child each descriptor leads to
    /dev/null, so that closing it there has no effect on files opened later. A process that is
    started with ``pass_fds`` still gets what is passed.

    Args:
        files: objects with a `fileno`, for as long as they exist; or descriptors, for ever.
    """
    for file in files:
        if isinstance(file, int):
            _private_numbers.add(file)
        else:
            _private_files.add(file)
        if PASSES_DESCRIPTORS:  # a program that the user's code executes gets none either
            os.set_inheritable(file if isinstance(file, int) else file.fileno(), False)


def _leave_to_parent() -> None:
    """Replace the private descriptors of a process that was just forked."""
    numbers = set(_private_numbers)
    for file in list(_private_files):
        with suppress(OSError, ValueError):  # it is closed
            numbers.add(file.fileno())
    numbers.discard(-1)
    if not numbers:
        return
    try:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # no descriptor is free
        for number in numbers:
            with suppress(OSError):
                os.close(number)
        return
    for number in numbers:
        with suppress(OSError):
            os.dup2(nothing, number, inheritable=False)
    os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
