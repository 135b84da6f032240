"""Reading of JSON and TOML files that may be a stranger's, with limits on size and depth."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from flatout_explain.errors import short

T = TypeVar("T")

_CONVERTING = threading.RLock()
"""msgspec 0.22 crashed where two threads converted to the same types for the first time."""

MOST_BYTES = 4 << 20
"""Default maximum bytes of a document. Its parsed value takes about thirty times the memory."""

MOST_TOML = 1 << 20
"""Maximum bytes of a TOML document, which is parsed more slowly."""

LONGEST_LINE = 1 << 16
"""Maximum bytes of a line in a file of JSON lines."""

LARGEST = 1e15
"""Upper bound of all numbers of a recording (seconds, shares, MiB, counts)."""

DEPTH = 100
"""Maximum depth of nested lists and tables."""

Number = Annotated[float, Meta(gt=-LARGEST, lt=LARGEST)]
WholeNumber = Annotated[int, Meta(gt=-int(LARGEST), lt=int(LARGEST))]
"""Types of fields that `convert` bounds."""


def parse_json(text: str | bytes, finite: bool = True) -> Any:
    """Parse a JSON text.

    Args:
        finite: refuse NaN and infinities. Flatout's own run files may contain them.

    Raises:
        ValueError: it is not JSON, is nested more deeply than `DEPTH`, or has a refused number.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant if finite else None)
    except RecursionError:
        raise _too_deep() from None
    _refuse_deep(value)
    return value


def parse_line(line: bytes) -> Any:
    """Parse one line of JSON lines, in which NaN and infinities are numbers.

    Raises:
        ValueError: it is not JSON, is longer than `LONGEST_LINE`, or has more than `DEPTH` lists
            and tables. The limits are checked before parsing, since there may be many such lines.
    """
    if len(line) > LONGEST_LINE:
        raise ValueError(f"a line has more than {LONGEST_LINE:,} bytes")
    if line.count(b"[") + line.count(b"{") > DEPTH:
        raise ValueError(f"a line has more than {DEPTH} lists and tables")
    return json.loads(line)


def bounded_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of an open file, except those that are longer than `LONGEST_LINE`."""
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) <= LONGEST_LINE:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(LONGEST_LINE)


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text.

    Raises:
        ValueError: it is not TOML, or is nested more deeply than `DEPTH`.
    """
    # The parser takes quadratic time for keys like a.a.a.a
    if any(part.count(".") > DEPTH for part in re.split(r"[=\n,{}\[\]]", text)):
        raise _too_deep()
    try:
        value = tomllib.loads(text)
    except RecursionError:
        raise _too_deep() from None
    _refuse_deep(value)
    return value


def read_json(path: Path, limit: int = MOST_BYTES) -> Any:
    """Return the JSON value of a file that the user names.

    Args:
        limit: maximum number of bytes.

    Raises:
        OSError: the file cannot be read, or is not an ordinary file.
        ValueError: the file is larger, or `parse_json` refuses it.
    """
    return parse_json(_read(path, limit))


def read_toml(path: Path, limit: int = MOST_TOML) -> dict[str, Any]:
    """Return the table of a TOML file that the user names. The errors are those of `read_json`."""
    return parse_toml(_read(path, limit).decode())


def plain_number(value: Any, name: str = "it") -> float:
    """Return a document's value if it is a number of a reasonable size.

    Args:
        value: the value.
        name: its name, for the message.

    Raises:
        ValueError: it is not a number, is NaN or infinite, or its size is `LARGEST` or more.
    """
    if type(value) not in (int, float) or not abs(value) < LARGEST:
        raise ValueError(f"{name} = {str(value)[:40]} is no possible number")
    return value


def convert(
    values: Any, kind: type[T], other: Callable[[type, Any], Any] | None = None
) -> T:  # fmt: skip
    """Return the value of a parsed document as an object whose fields have types and limits.

    Args:
        values: the value. Keys that are no fields are ignored, unless the type forbids them.
        kind: a dataclass or a struct of msgspec.
        other: makes a field's value where msgspec does not know the field's type.

    Raises:
        ValueError: it is no such object. The message names the first wrong field.
    """
    try:
        with _CONVERTING:
            return msgspec.convert(values, kind, str_keys=True, dec_hook=other)
    except msgspec.ValidationError as error:
        what, _, where = str(error).replace("`", "").partition(" - at ")
        what = re.sub("^Object missing required field (.*)", r"\1 is missing", what)
        raise ValueError(f"{_place(where, values)}{what}") from error


def _place(where: str, value: Any) -> str:
    """Return where in a document (``$.steps``) a value is wrong, and the value if it is found."""
    place = where.replace("$.", "").removeprefix("$")
    if not place:
        return ""
    if "[...]" in where or " " in where:  # of some key of a table
        return f"{place}: "
    for key, number in re.findall(r"\.(\w+)|\[(\d+)\]", where):
        value = value[int(number) if number else key]
    return f"{place} = {short(value)}: "


def _read(path: Path, limit: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe must not block
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no ordinary file", str(path))
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"it has {status.st_size:,} bytes, and at most {limit:,} are read")
    return content


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it has {name} for a number")


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {DEPTH} levels deep")


def _refuse_deep(value: Any) -> None:
    level = [[value]]
    for _ in range(DEPTH + 2):
        level = [
            inner for outer in level for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in (dict, list)
        ]  # fmt: skip
        if not level:
            return
    raise _too_deep()
