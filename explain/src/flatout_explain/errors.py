"""Errors for the user: one clear sentence instead of a traceback.

An error that a user can cause (a misspelt flag, a full disk, a damaged file) is a `FlatoutError`;
the command line prints its text and exits with its `exit_code`. Any other exception is a defect.
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from flatout_explain.output import on_one_line, printable


class FlatoutError(Exception):
    """A failure of the run. The message says what is wrong, with which value, and what to do.

    It is always one line, even if it names a file whose name has line breaks.
    """

    exit_code = 1

    def __str__(self) -> str:
        return on_one_line(super().__str__())


class UsageError(FlatoutError):
    """An invalid request (unknown name, impossible value). Nothing was started."""

    exit_code = 2


class NotInstalledError(UsageError):
    """A required package or library is missing, or does not work on this machine."""


class Interrupt(BaseException):
    """SIGINT, SIGTERM or SIGHUP arrived, and it is safe to stop.

    It is a `BaseException`, as `KeyboardInterrupt` is, so that an environment's
    ``except Exception`` does not swallow it.
    """

    signals = tuple(
        getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
    )  # Windows has no SIGHUP

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


@contextmanager
def writing(what: object) -> Generator[None, None, None]:
    """Turn an `OSError` of the block into a `FlatoutError` that says what cannot be written."""
    try:
        yield
    except OSError as error:
        raise FlatoutError(f"cannot write {what}: {error.strerror or one_line(error)}.") from error


def refuse_empty(name: str, path: object) -> None:
    """Check that a path is not the empty text.

    Args:
        name: the flag or argument that gives the path, for the message.

    Raises:
        UsageError: it is empty.
    """
    if path == "":
        raise UsageError(f"{name} is empty: give a path.")


LONGEST = 500
"""Maximum characters that a message quotes of an exception's text."""


def one_line(error: BaseException) -> str:
    """Return an exception's text on one line; for a long text only its beginning and its end."""
    try:
        text = str(error)
        if len(text) > LONGEST:  # JAX's messages have the reason at the end
            begin, end = text[: LONGEST // 2], text[-LONGEST // 2 :]
            text = f"{begin} [... {len(text) - LONGEST:,} characters ...] {end}"
        return printable(" ".join(text.split())) or "no message"
    except Exception:  # `str` of a user's exception may fail
        return "no message"


def with_full_stop(error: BaseException) -> str:
    """Return an exception's text on one line with a full stop, or with the question mark that it
    has: Python 3.13 asks "Did you mean 'size'?"."""
    text = one_line(error).rstrip(".")
    return text if text.endswith("?") else f"{text}."


def damage(error: BaseException) -> str:
    """Explain an exception that reading a file's values raised. Python's own messages would mean
    nothing to the user of the file."""
    if isinstance(error, KeyError) and error.args:
        return f"{short(error.args[0])} is missing"
    if isinstance(error, TypeError | AttributeError | LookupError):
        return "a value in it has the wrong type"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(error)[:300]


def short(value: object) -> str:
    """Return the text of any value for a message: one line of at most 60 characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # `repr` of a user's object may fail
        text = f"of type {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ``" Did you mean 'a' or 'b'?"`` with the names closest to `name`, or ``""``."""
    matches = map(repr, difflib.get_close_matches(name, list(names), cutoff=0.5))
    return f" Did you mean {words}?" if (words := " or ".join(matches)) else ""
