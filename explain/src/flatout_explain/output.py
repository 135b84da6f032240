"""Terminal output: for broken streams, ASCII terminals and untrusted text."""

from __future__ import annotations

import codecs
import errno
import json
import math
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
    """Return a text in which `�` replaces control characters. Line breaks stay; other white space
    becomes a space."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else " " if letter.isspace() else "\ufffd"
        for letter in text
    )


def on_one_line(text: str) -> str:
    """Return a `printable` text with each line break as ``\\n``: names of files may have some."""
    return printable(text.replace("\n", "\\n"))


def plain(text: str, encoding: str) -> str:
    """Return a text with only characters of an encoding; `PLAIN` has the replacements."""
    return text.encode(encoding, "flatout.plain").decode(encoding)


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lost = error.object[error.start : error.end]
    return "".join(PLAIN.get(letter, "?") for letter in lost), error.end


codecs.register_error("flatout.plain", _replace)


def command_name() -> str:
    """Return the command of this tool, for sentences that say what to type.

    It is ``flatout explain`` in a process that has loaded Flatout, which has it as a command of its
    own, and ``flatout-explain`` elsewhere.
    """
    return "flatout explain" if "flatout" in sys.modules else "flatout-explain"


def say(sentence: object) -> None:
    """Print a sentence on stderr, if the process has a stderr."""
    if sys.stderr is not None:
        name = command_name().partition(" ")[0]
        print(f"{name}: {on_one_line(str(sentence))}", file=sys.stderr, flush=True)


class Output:
    """A text stream to which writing never fails.

    Attributes:
        called: the stream's name, for messages.
        lost: the reason why writing failed, or an empty string.
        unread: whether writing failed because the reader has closed the pipe.
        reported: whether stderr has the message about the failure.
    """

    def __init__(self, stream: TextIO, called: str) -> None:
        self._stream = stream
        self.called = called
        self.lost = ""
        self.unread = self.reported = False
        self._diverted: Output | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text, or drop it after a failure."""
        encoding = self._stream.encoding or "utf-8"
        self._attempt(lambda: self._stream.write(plain(text, encoding)))
        return len(text)

    def flush(self) -> None:
        """Flush the stream; do nothing after a failure."""
        self._attempt(self._stream.flush)

    def settle(self) -> None:
        """Redirect a failed stream to /dev/null before the process ends. Otherwise the interpreter
        would flush it again, fail, and change the exit code."""
        self.flush()
        if not self.lost:
            return
        with suppress(OSError, ValueError):  # a stream of another kind, or closed
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            self._stream.flush()

    def divert(self) -> TextIO:
        """Make descriptor 1 lead to stderr. This stream writes to a duplicate of the former one.

        Returns:
            The new `sys.stdout`, which writes to stderr.
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
    """Return why an `Output` cannot be written, or an empty string. The first time, print it and
    `consequence` on stderr."""
    if not isinstance(stream, Output) or not stream.lost:
        return ""
    reason = f"{stream.called} cannot be written ({stream.lost})"
    if not stream.reported:
        stream.reported = True
        say(f"{reason}; {consequence}.")
    return reason


def tolerant(stream: TextIO | None) -> TextIO | None:
    """Wrap a stream in an `Output`; return None if there is none."""
    return None if stream is None else cast(TextIO, Output(stream, STDOUT))


def json_text(value: object, **layout: Any) -> str:
    """Return a value as JSON that every program can read: NaN and infinities become null.

    Args:
        value: the value.
        layout: `indent` and `separators` of `json.dumps`.
    """
    try:
        return json.dumps(value, allow_nan=False, **layout)
    except ValueError:
        return json.dumps(_with_nulls(value), allow_nan=False, **layout)


def _with_nulls(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _with_nulls(each) for name, each in value.items()}
    return [_with_nulls(each) for each in value] if isinstance(value, (list, tuple)) else value


@contextmanager
def guarded() -> Iterator[Output | None]:
    """Make printing never fail within a context. Yield stdout, or None if there is none."""
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
    """Open /dev/null for descriptors 0 to 2 that the caller closed (``>&-``). Otherwise the next
    opened file would get such a number, and with it the text that libraries print."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError as error:
            if error.errno == errno.EBADF:
                os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
