"""Errors for the user, which all modules raise: one clear sentence instead of a traceback.

An error that a user can cause (a misspelt name, a full disk, an environment that raises) is a
`FlatoutError`; the command line prints its text and exits with its `exit_code`. Any other exception
is a defect of Flatout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import flatout_explain
from flatout_explain.errors import (
    FlatoutError,
    Interrupt,
    NotInstalledError,
    UsageError,
    damage,
    nearest,
    one_line,
    refuse_empty,
    short,
    with_full_stop,
    writing,
)

if TYPE_CHECKING:
    import traceback

__all__ = [
    "CallbackFailure", "CheckpointError", "DamagedError", "EnvironmentFailure", "FlatoutError",
    "Interrupt", "InvalidReturn", "NoRoomError", "NotInstalledError", "UsageError", "damage",
    "described", "failure", "full_memory", "is_library", "nearest", "one_line", "raised_at",
    "refuse_empty", "short", "with_full_stop", "writing",
]  # fmt: skip

for _kind in (FlatoutError, UsageError, NotInstalledError, Interrupt):
    _kind.__module__ = __name__  # the name that users of Flatout import, in tracebacks and help


class NoRoomError(FlatoutError):
    """The run does not fit into the available memory."""


class EnvironmentFailure(FlatoutError):  # noqa: N818 - the run's failure, not a class of bug
    """A user's environment raised, or returned an invalid observation or reward."""


class InvalidReturn(EnvironmentFailure):
    """A user's environment returned an invalid value. Making the environment again cannot help."""


class CallbackFailure(FlatoutError):  # noqa: N818 - as `EnvironmentFailure`
    """A user's callback raised, or did something that callbacks must not do."""


class CheckpointError(FlatoutError):
    """A checkpoint or saved agent is missing, truncated, corrupt, or does not fit the run."""


class DamagedError(CheckpointError):
    """A saved file was changed or removed."""


def failure(error: BaseException) -> str:
    """Return an exception's type and text for the middle of a sentence, and the line of the user's
    code that raised it, if one did: ``KeyError: 'x' (data.py:3)``."""
    frame = _own_frame(error)
    line = "" if frame is None else f" ({frame.filename}:{frame.lineno})"
    return f"{type(error).__name__}: {one_line(error).rstrip('.')}{line}"


def full_memory(error: BaseException) -> str:
    """Return a sentence for an exception of a memory that is full, a device's or the machine's;
    an empty text for any other."""
    if isinstance(error, MemoryError):
        return (
            "out of memory; lower --envs, --buffer-size (--n-steps for ppo) or the network's size"
        )
    if not isinstance(error, RuntimeError) or "RESOURCE_EXHAUSTED" not in str(error):
        return ""
    reason = str(error).splitlines()[0]  # JAX's words
    return (
        f"the device's memory is full ({reason}); lower --envs, --batch-size or the network's "
        "size, or raise memory="
    )


def raised_at(error: BaseException) -> str:
    """Return ``file:line`` of the innermost line of the user's code in an exception's traceback;
    lines of libraries, which that code called, are skipped."""
    import traceback

    frame = _own_frame(error) or traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _own_frame(error: BaseException) -> traceback.FrameSummary | None:
    import traceback

    frames = reversed(traceback.extract_tb(error.__traceback__))
    return next((one for one in frames if not is_library(one.filename)), None)


def is_library(file: str) -> bool:
    """Return whether a file with Python code belongs to Flatout, Python or an installed package."""
    import sysconfig

    libraries = [sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib", "platlib")]
    ours = (
        __file__.removesuffix("errors.py"),
        flatout_explain.__file__.removesuffix("__init__.py"),
    )
    return file.startswith((*libraries, *ours, "<"))


def described(value: object) -> str:
    """Return a short description of an invalid observation: the type and shape of an array of
    numbers, such as ``float32[3]``, else the name of the value's type."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and getattr(dtype, "kind", None) in ("f", "i", "u", "b"):
        return f"{dtype}{[*shape]}"
    return type(value).__name__
