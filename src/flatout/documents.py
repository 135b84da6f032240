"""JSON and TOML of files that may be a stranger's: limited in size and in depth."""

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
"""Maximum size of a document by default: its value takes some thirty times the memory."""

MOST_TOML = 1 << 20
"""Maximum size of a TOML document, which is parsed more slowly."""

LONGEST_LINE = 1 << 16
"""Maximum bytes of a line in a file of JSON lines."""

LARGEST = 1e15
"""Numbers of a recording (seconds, shares, MiB, counts) are smaller."""

DEPTH = 100
"""Maximum number of lists and tables within one another."""


def parse_json(text: str | bytes, finite: bool = True) -> Any:
    """The value of a JSON text.

    Args:
        finite: refuse NaN and infinities, which Flatout itself writes into a run's files.

    Raises:
        ValueError: it is no JSON, nested more deeply than `DEPTH`, or has a refused number.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant if finite else None)
    except RecursionError:
        raise _too_deep() from None
    _refuse_deep(value)
    return value


def parse_line(line: bytes) -> Any:
    """The value of one line of JSON lines, in which NaN and infinities are numbers.

    Raises:
        ValueError: it is no JSON, longer than `LONGEST_LINE`, or has more than `DEPTH` lists and
            tables: it is refused before it is parsed, since there may be many such lines.
    """
    if len(line) > LONGEST_LINE:
        raise ValueError(f"a line has more than {LONGEST_LINE:,} bytes")
    if line.count(b"[") + line.count(b"{") > DEPTH:
        raise ValueError(f"a line has more than {DEPTH} lists and tables")
    return json.loads(line)


def bounded_lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of an open file, without those that are longer than `LONGEST_LINE`."""
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) <= LONGEST_LINE:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(LONGEST_LINE)


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text.

    Raises:
        ValueError: it is no TOML, or nested more deeply than `DEPTH`.
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
    """The JSON value of a file that the user names.

    Args:
        limit: maximum number of bytes.

    Raises:
        OSError: it cannot be read, or is no ordinary file.
        ValueError: it is larger, or as `parse_json` raises.
    """
    return parse_json(_content(path, limit))


def read_toml(path: Path, limit: int = MOST_TOML) -> dict[str, Any]:
    """The same of a TOML file; raises as `parse_toml` does, too."""
    return parse_toml(_content(path, limit).decode())


def plain_number(value: Any, name: str = "it") -> float:
    """A number of a document, if it is one of a reasonable size.

    Raises:
        ValueError: it is of another type, NaN, infinite, or `LARGEST` or more.
    """
    if type(value) not in (int, float) or not abs(value) < LARGEST:
        raise ValueError(f"{name} = {str(value)[:40]} is no possible number")
    return value


def plain_fields(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for a dataclass after checking those of its number, flag and text fields.

    Values for fields of other types, and for names that are no fields, are not checked.

    Raises:
        ValueError: a value has the wrong type, or is no possible number; the text names the first.
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
    """The type of each plain field of a dataclass, and whether it may be None."""
    found = dict[str, tuple[type, bool]]()
    for name, hint in get_type_hints(kind).items():
        several = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        plain = [one for one in several if one in (bool, int, float, str)]
        if plain:
            found[name] = plain[0], NoneType in several
    return found


def _content(path: Path, limit: int) -> bytes:
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
