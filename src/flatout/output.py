"""What a terminal is sent: streams that may go away, terminals of ASCII, text of strangers."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

PLAIN = {
    **dict.fromkeys("─━╴╶╸╺\N{EN DASH}\N{EM DASH}·", "-"), **dict.fromkeys("│┃", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╯╰", "+"), **dict(zip("▁▂▃▄▅▆▇█▀", "_.-=+*%##", strict=True)),
    "±": "+-", "²": "^2", "µ": "u", "\N{MULTIPLICATION SIGN}": "x", "…": "...", "→": "->",
}  # fmt: skip
"""What stands for a character where a terminal cannot show it."""

STDOUT = "standard output"


def printable(text: str) -> str:
    """A text with its lines; `�` stands for every character that could steer a terminal."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else " " if letter.isspace() else "\ufffd"
        for letter in text
    )


def plain(text: str, encoding: str) -> str:
    """A text in the characters that an encoding has."""
    try:
        text.encode(encoding)
        return text
    except UnicodeEncodeError:
        return "".join(_plain(letter, encoding) for letter in text)


def _plain(letter: str, encoding: str) -> str:
    try:
        letter.encode(encoding)
        return letter
    except UnicodeEncodeError:
        return PLAIN.get(letter, "?")


def say(sentence: object) -> None:
    """One sentence of the command's on stderr, where there is one."""
    if sys.stderr is not None:
        print(f"flatout: {printable(str(sentence))}", file=sys.stderr, flush=True)


def leave() -> None:
    """A last line in a terminal that shows its cursor, without what Python holds back."""
    for number in (1, 2):
        with suppress(OSError):
            if os.isatty(number):
                os.write(number, b"\x1b[?25h\n")
                break
    with suppress(OSError):
        os.write(2, b"flatout: interrupted\n")


class Output:
    """A text stream to which writing never fails: not without a reader, room or terminal.

    Args:
        stream: where text goes for as long as it can be written.
        called: its name, for messages.

    Attributes:
        lost: why nothing can be written any more, or an empty string.
        unread: whether that is because its reader has gone.
        told: whether the user has been told.
    """

    def __init__(self, stream: TextIO, called: str) -> None:
        self._stream = stream
        self.called = called
        self.lost = ""
        self.unread = self.told = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or drop what cannot be written."""
        if not self.lost:
            try:
                self._stream.write(plain(text, self._stream.encoding or "utf-8"))
            except (OSError, ValueError) as error:  # ValueError: somebody has closed it
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        """Hand over what is held back, or drop it."""
        if not self.lost:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._lose(error)

    def settle(self) -> None:
        """Before the process ends: what cannot be written goes nowhere, for the interpreter would
        fail to write it once more, and end with an exit code of its own."""
        self.flush()
        if not self.lost:
            return
        with suppress(OSError, ValueError):  # a stream of another kind, or closed
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            self._stream.flush()

    def _lose(self, error: OSError | ValueError) -> None:
        self.unread = isinstance(error, BrokenPipeError)
        self.lost = getattr(error, "strerror", None) or str(error)


def trouble(stream: object, consequence: str) -> str:
    """What keeps a stream from being written, or an empty string; said on stderr the first time.

    Args:
        stream: any; only an `Output` has troubles.
        consequence: what follows from it.
    """
    if not isinstance(stream, Output) or not stream.lost:
        return ""
    what = f"{stream.called} cannot be written ({stream.lost})"
    if not stream.told:
        stream.told = True
        say(f"{what}; {consequence}.")
    return what


def tolerant(stream: TextIO | None) -> TextIO | None:
    """A stream as `Output`."""
    return None if stream is None else cast(TextIO, Output(stream, STDOUT))


@contextmanager
def guarded() -> Iterator[Output | None]:
    """Within it printing never fails; gives stdout, or None where there is none."""
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
        sys.stdout, sys.stderr = before


def _fill_gaps() -> None:
    """Descriptors that the caller closed (``>&-``) lead nowhere: the next file that is opened
    would get their numbers, and what a library prints would be written into it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError as error:
            if error.errno == errno.EBADF:
                os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
