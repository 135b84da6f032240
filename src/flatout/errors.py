"""Errors for the user: one clear sentence instead of a traceback.

An error that a user can cause (a misspelt name, a full disk, an environment that raises) is a
`FlatoutError`; the command line prints its text and exits with its `exit_code`. Any other exception
is a defect of Flatout.
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from flatout.output import on_one_line, printable


class FlatoutError(Exception):
    """The run failed; the message says what is wrong, with which value, and what to do.

    It is one line, also where it names a file whose name has line breaks.
    """

    exit_code = 1

    def __str__(self) -> str:
        return on_one_line(super().__str__())


class UsageError(FlatoutError):
    """The request is invalid (unknown name, impossible value): nothing was started."""

    exit_code = 2


class NotInstalledError(UsageError):
    """A package or a library that something needs is missing, or does not work here."""


class NoRoomError(FlatoutError):
    """The run does not fit into what memory is available now."""


class EnvironmentFailure(FlatoutError):  # noqa: N818 - the run's failure, not a class of bug
    """A user's environment raised, or returned an invalid observation or reward."""


class InvalidReturn(EnvironmentFailure):
    """A user's environment returned what none may return: making it again would not help."""


class CallbackFailure(FlatoutError):  # noqa: N818 - as `EnvironmentFailure`
    """A user's callback raised, or did what none may do."""


class CheckpointError(FlatoutError):
    """A checkpoint or saved agent is missing, truncated, corrupt, or belongs to something else."""


class DamagedError(CheckpointError):
    """A saved file was changed or removed."""


class Interrupt(BaseException):
    """SIGINT, SIGTERM or SIGHUP while it is safe to stop.

    A `BaseException`, as `KeyboardInterrupt` is: an environment's ``except Exception`` does not
    swallow it.
    """

    signals = tuple(
        getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
    )  # Windows has no SIGHUP

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


@contextmanager
def writing(what: object) -> Generator[None, None, None]:
    """Turn an `OSError` into a `FlatoutError` that says what cannot be written."""
    try:
        yield
    except OSError as error:
        raise FlatoutError(f"cannot write {what}: {error.strerror or one_line(error)}.") from error


def refuse_empty(name: str, path: object) -> None:
    """Refuse an empty text in the place of a path.

    Args:
        name: what gives the path, for the message.

    Raises:
        UsageError: it is empty.
    """
    if path == "":
        raise UsageError(f"{name} is empty: give a path.")


LONGEST = 500
"""Maximum characters that a message quotes of an exception's text."""


def one_line(error: BaseException) -> str:
    """Any exception's text on one line; of a long one its begin and its end."""
    try:
        text = str(error)
        if len(text) > LONGEST:  # of JAX's texts the reason is the end
            begin, end = text[: LONGEST // 2], text[-LONGEST // 2 :]
            text = f"{begin} [... {len(text) - LONGEST:,} characters ...] {end}"
        return printable(" ".join(text.split())) or "no message"
    except Exception:  # a user's exception may fail at even that
        return "no message"


def damage(error: BaseException) -> str:
    """Explain the error that reading a file's values raised, without Python's own words, which mean
    nothing to a reader of the file."""
    if isinstance(error, KeyError) and error.args:
        return f"{short(error.args[0])} is missing"
    if isinstance(error, TypeError | AttributeError | LookupError):
        return "a value in it has the wrong type"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return one_line(error)[:300]


def raised_at(error: BaseException) -> str:
    """``file:line`` of what a user's code raised: its own newest line, not that of a library which
    it called."""
    import sysconfig
    import traceback

    libraries = [sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib", "platlib")]
    others = (*libraries, __file__.removesuffix("errors.py"))
    frames = traceback.extract_tb(error.__traceback__)
    own = (one for one in reversed(frames) if not one.filename.startswith(others))
    frame = next(own, frames[-1])
    return f"{frame.filename}:{frame.lineno}"


def short(value: object) -> str:
    """Any value for a message: one line of at most 60 characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a user's object may fail at even that
        text = f"of type {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def described(value: object) -> str:
    """A value that is no observation, in a word: an array of numbers as ``float32[3]``, any other
    by the name of its type."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and getattr(dtype, "kind", None) in ("f", "i", "u", "b"):
        return f"{dtype}{[*shape]}"
    return type(value).__name__


def nearest(name: str, names: Iterable[str]) -> str:
    """``" Did you mean 'a' or 'b'?"`` with the names closest to `name`, or an empty string."""
    matches = map(repr, difflib.get_close_matches(name, list(names), cutoff=0.5))
    return f" Did you mean {words}?" if (words := " or ".join(matches)) else ""
