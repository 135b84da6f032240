"""Reading of JSON and TOML files that may be a stranger's, with limits on size and depth."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import IO, Any, get_args, get_type_hints

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


def plain_fields(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Check the values for a dataclass's number, flag and text fields; return all values.

    Values for fields of other types, and for names that are no fields, are not checked.

    Raises:
        ValueError: a value has the wrong type or is refused by `plain_number`. The message names
            the first such value.
    """
    kinds = _plain_kinds(kind)
    for name, value in values.items():
        wanted = kinds.get(name)
        if wanted is None or (value is None and wanted[1]):
            continue
        if wanted[0] in (int, float):
            number = plain_number(value, name)
            if wanted[0] is int and number != int(number):
                raise ValueError(f"{name} = {number} is no whole number")
        elif type(value) is not wanted[0]:
            raise ValueError(f"{name} = {str(value)[:40]} is no {wanted[0].__name__}")
    return dict(values)


@lru_cache
def _plain_kinds(kind: type) -> dict[str, tuple[type, bool]]:
    """Return the type of each number, flag and text field, and whether it may be None."""
    found = dict[str, tuple[type, bool]]()
    for name, hint in get_type_hints(kind).items():
        several = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        plain = [one for one in several if one in (bool, int, float, str)]
        if plain:
            found[name] = plain[0], NoneType in several
    return found


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
