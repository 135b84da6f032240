"""Terminal output: broken streams, ASCII terminals, untrusted text."""

from __future__ import annotations

import codecs
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

PLAIN = {
    **dict.fromkeys("─━╴╶╸╺\N{EN DASH}\N{EM DASH}·", "-"), **dict.fromkeys("│┃", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╯╰", "+"), **dict(zip("▁▂▃▄▅▆▇█▀", "_.-=+*%##", strict=True)),
    "±": "+-", "²": "^2", "µ": "u", "\N{MULTIPLICATION SIGN}": "x", "…": "...", "→": "->",
}  # fmt: skip
"""Replacements for characters that a terminal cannot show."""

STDOUT = "standard output"


def printable(text: str) -> str:
    """A text with its line breaks, where `�` replaces control characters."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else " " if letter.isspace() else "\ufffd"
        for letter in text
    )


def on_one_line(text: str) -> str:
    """A text as `printable`, with line breaks as Python writes them in quotes: names of files may
    have some."""
    return printable(text.replace("\n", "\\n"))


def plain(text: str, encoding: str) -> str:
    """A text limited to the characters of an encoding."""
    return text.encode(encoding, "flatout.plain").decode(encoding)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lost = error.object[error.start : error.end]
    return "".join(PLAIN.get(letter, "?") for letter in lost), error.end


codecs.register_error("flatout.plain", _replaced)


def say(sentence: object) -> None:
    """Print a sentence on stderr, if there is one."""
    if sys.stderr is not None:
        print(f"flatout: {on_one_line(str(sentence))}", file=sys.stderr, flush=True)


def leave() -> None:
    """Print the last line of an interrupted command and show the cursor, bypassing buffers."""
    for number in (1, 2):
        with suppress(OSError):
            if os.isatty(number):
                os.write(number, b"\x1b[?25h\n")
                break
    with suppress(OSError):
        os.write(2, b"flatout: interrupted\n")


class Output:
    """A text stream to which writing never fails.

    Attributes:
        called: its name, for messages.
        lost: why writing failed, or an empty string.
        unread: whether it failed because the reader has gone.
        told: whether the user was told.
    """

    def __init__(self, stream: TextIO, called: str) -> None:
        self._stream = stream
        self.called = called
        self.lost = ""
        self.unread = self.told = False
        self._diverted: Output | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text, or drop it after a failure."""
        encoding = self._stream.encoding or "utf-8"
        self._attempt(lambda: self._stream.write(plain(text, encoding)))
        return len(text)

    def flush(self) -> None:
        """Flush, or drop the text after a failure."""
        self._attempt(self._stream.flush)

    def settle(self) -> None:
        """Redirect a failed stream to /dev/null before the process ends: the interpreter would
        flush it again, fail, and change the exit code."""
        self.flush()
        if not self.lost:
            return
        with suppress(OSError, ValueError):  # a stream of another kind, or closed
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            self._stream.flush()

    def divert(self) -> TextIO:
        """Write to a duplicate of descriptor 1, which itself leads to stderr from now on.

        Returns:
            A stream for those who print to `sys.stdout`.
        """
        diverted = Output(self._stream, "standard error")
        self._stream = os.fdopen(os.dup(1), "w", encoding=self._stream.encoding or "utf-8")
        os.dup2(2, 1)
        self._diverted = diverted
        return cast(TextIO, diverted)

    def restore(self) -> None:
        """Undo `divert`."""
        if self._diverted is not None:
            self._diverted.flush()
            with self._stream as duplicate:
                os.dup2(duplicate.fileno(), 1)
            self._stream, self._diverted = self._diverted._stream, None

    def _attempt(self, action: Callable[[], object]) -> None:
        if not self.lost:
            try:
                action()
            except (OSError, ValueError) as error:  # ValueError: it is closed
                self.unread = isinstance(error, BrokenPipeError)
                self.lost = getattr(error, "strerror", None) or str(error)


def trouble(stream: object, consequence: str) -> str:
    """Why an `Output` cannot be written, or an empty string; stderr is told once, with what
    follows."""
    if not isinstance(stream, Output) or not stream.lost:
        return ""
    reason = f"{stream.called} cannot be written ({stream.lost})"
    if not stream.told:
        stream.told = True
        say(f"{reason}; {consequence}.")
    return reason


def tolerant(stream: TextIO | None) -> TextIO | None:
    """A stream as `Output`."""
    return None if stream is None else cast(TextIO, Output(stream, STDOUT))


_reserved: Output | None = None
"""The stdout that `reserve_stdout` keeps for `print_json`."""


def reserve_stdout() -> None:
    """Keep stdout for `print_json`; from now on everything else that is printed goes to stderr.

    That includes what environments, libraries in C and child processes write to descriptor 1. It
    lasts until the end of `guarded`, in which it must be called.
    """
    global _reserved
    output = sys.stdout
    if _reserved is not None or not isinstance(output, Output):
        return
    _reserved, sys.stdout = output, sys.stderr
    with suppress(OSError, ValueError):  # a stream without a descriptor: nothing else writes there
        if output.fileno() == 1:
            output.flush()
            sys.stdout = output.divert()


def stdout() -> TextIO | None:
    """The command's stdout, also where it is reserved."""
    return sys.stdout if _reserved is None else cast(TextIO, _reserved)


def print_json(value: object) -> None:
    """Print a value as one line of JSON on the command's stdout."""
    print(json.dumps(value), file=stdout(), flush=True)


@contextmanager
def guarded(ends: bool = False) -> Iterator[Output | None]:
    """A context in which printing never fails; gives stdout, or None if there is none.

    Args:
        ends: the process ends after it: a reserved stdout stays so, for what exit handlers print.
    """
    global _reserved
    _fill_gaps()
    before = sys.stdout, sys.stderr
    made = [
        None if stream is None else Output(stream, name)
        for stream, name in zip(before, (STDOUT, "standard error"), strict=True)
    ]
    sys.stdout, sys.stderr = (cast(TextIO, output) for output in made)
    try:
        yield made[0]
    finally:
        for output in made:
            if output is not None:
                output.settle()
        if _reserved is not None and not ends:
            _reserved.restore()
        _reserved = None
        sys.stdout, sys.stderr = before


def _fill_gaps() -> None:
    """Open /dev/null for descriptors that the caller closed (``>&-``): else the next opened file
    would get their numbers, and the text that libraries print."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError as error:
            if error.errno == errno.EBADF:
                os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
