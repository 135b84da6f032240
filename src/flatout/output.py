"""Output of the command: stdout reserved for JSON, and the last line of an interrupted command."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO, cast

from flatout_explain.output import (
    PLAIN,
    STDOUT,
    Output,
    json_text,
    on_one_line,
    plain,
    printable,
    say,
    tolerant,
    trouble,
)
from flatout_explain.output import guarded as guarded_streams

__all__ = [
    "PLAIN", "STDOUT", "Output", "guarded", "json_text", "leave", "on_one_line", "plain",
    "print_json", "printable", "reserve_stdout", "say", "shell_word", "stdout", "text_table",
    "tolerant", "trouble",
]  # fmt: skip


def shell_word(path: object) -> str:
    """Return a path as a word of a command that is pasted into a shell."""
    return shlex.quote(str(path))


def text_table(rows: Sequence[Sequence[str]], left: Collection[int]) -> list[str]:
    """Return the lines of a table; the cells of some columns begin on the left, others end on the
    right. For thousands of rows rich takes seconds.
    """
    from rich.cells import cell_len  # some characters are two columns of a terminal wide

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]

    def filled(place: int, cell: str) -> str:
        space = " " * (widths[place] - cell_len(cell))
        return cell + space if place in left else space + cell

    return ["  ".join(filled(*one) for one in enumerate(row)).rstrip() for row in rows]


def leave() -> None:
    """Print the last line of an interrupted command and show the cursor, without buffering."""
    for number in (1, 2):
        with suppress(OSError):
            if os.isatty(number):
                os.write(number, b"\x1b[?25h\n")
                break
    with suppress(OSError):
        os.write(2, b"flatout: interrupted\n")


_reserved: Output | None = None
"""The stdout that `reserve_stdout` has reserved for `print_json`."""


def reserve_stdout() -> None:
    """Reserve stdout for `print_json`; from now on all other text goes to stderr.

    That includes text that environments, C libraries and child processes write to descriptor 1.
    It lasts until the end of `guarded`, within which it must be called.
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
    """Return the command's stdout, even if it is reserved."""
    return sys.stdout if _reserved is None else cast(TextIO, _reserved)


def print_json(value: object) -> None:
    """Print a value as one line of JSON on the command's stdout."""
    print(json_text(value), file=stdout(), flush=True)


@contextmanager
def guarded(ends: bool = False) -> Iterator[Output | None]:
    """Make printing never fail within a context. Yield stdout, or None if there is none.

    Args:
        ends: whether the process ends after it. Then a reserved stdout stays reserved, because
            exit handlers may print.
    """
    global _reserved
    with guarded_streams() as stdout:
        try:
            yield stdout
        finally:
            reserved, _reserved = _reserved, None
            if reserved is not None and not ends:
                reserved.settle()
                reserved.restore()
