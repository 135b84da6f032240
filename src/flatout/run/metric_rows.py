"""Rows of metrics.jsonl, found without holding or parsing all of a long file.

The file may be a stranger's: memory and time are bounded for any size and any length of a line.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from flatout_explain.documents import LONGEST_LINE, parse_line
from flatout_explain.files import nofollow

WHOLE, ROWS = 4 << 20, 1000
"""Maximum bytes of a file whose rows are all read; number of evenly spread rows that are read of a
larger file."""

MOST_SEARCHED = 1 << 29
"""Maximum bytes that are searched for a metric: over half a million rows of a run."""

BLOCK = 1 << 20
"""Bytes that are searched at a time."""

MOST_EVALUATIONS = 100_000
"""Evaluations to keep: once there are more than twice as many, every other one is dropped."""

MOST_ADDED = 16 << 20
"""Maximum bytes that are read at a time of what was added to a file."""

MOST_PARSED = 100_000
"""Maximum rows that are parsed in the search for a metric's last value."""

Row = dict[str, float]
"""The step, the wall time and the chosen metrics of one row, as far as they are numbers."""


def sampled(path: Path, names: Collection[str]) -> list[Row]:
    """Return all rows of a file of metrics; of a large file `ROWS` of them and the last.

    Args:
        names: metrics that the rows are to have; damaged lines are skipped.

    Raises:
        OSError: the file cannot be read.
    """
    with nofollow.open_stream(path) as file:
        size = os.fstat(file.fileno()).st_size
        lines = file.read(WHOLE).splitlines() if size <= WHOLE else _spread(file, size)
        return list(_rows(lines, names))


def evaluated(path: Path, names: Collection[str]) -> list[Row]:
    """Return the rows that hold an evaluation, all of them also in a large file; otherwise as
    `sampled`."""
    found: list[Row] = []
    seen, every = 0, 1
    with nofollow.open_stream(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_SEARCHED:
            return list(_rows(_spread(file, size), names))
        for block in _blocks(file):
            if b'"eval/' in block:
                lines = [line for line in block.splitlines() if b'"eval/' in line]
                found += _rows(lines[-seen % every :: every], names)
                seen += len(lines)
            if len(found) > 2 * MOST_EVALUATIONS:
                found, every = found[::2], 2 * every
    return found


def value_at(path: Path, steps: int | None, name: str, depth: int = 1) -> float | None:
    """Return the last value of a metric in the rows of at most `steps` steps (None: in all rows).

    Args:
        depth: the last parts of the path that may not be links.

    Raises:
        OSError, ValueError, LookupError, TypeError, AttributeError: the last row or one that has
            the metric is damaged.
    """
    metric, parsed = f'"{name}"'.encode(), 0
    with nofollow.open_stream(path, nofollow.READ, depth) as file:
        end = _whole(file)
        if steps is not None:
            end = _end_of(steps, file, end)
        for block in _blocks_before(end, file):
            if parsed and metric not in block:
                continue
            for line in reversed(block.splitlines()):
                if metric in line or not parsed:
                    value = parse_line(line).get(name)
                    if _is_number(value):
                        return value
                    parsed += 1
            if parsed > MOST_PARSED:
                break
    return None


class GrowingCurve:
    """A metric of a run that trains: each row of its file is read once.

    Args:
        path: the file of metrics, which may not exist yet.
        names: metrics, of which a row has one.
    """

    def __init__(self, path: Path, names: Collection[str]) -> None:
        self._path, self._names = path, names
        self._end, self._found = 0, deque[tuple[float, float]]()

    def first(self, step: int) -> float | None:
        """Return the first recorded value at or after a step; those before it are forgotten."""
        with suppress(OSError):
            self._read()
        while self._found and self._found[0][0] < step:
            self._found.popleft()
        return self._found[0][1] if self._found else None

    def _read(self) -> None:
        """Read what was added since; all of a file that a resumed run has cut."""
        with nofollow.open_stream(self._path) as file:
            if os.fstat(file.fileno()).st_size < self._end:
                self._end = 0
                self._found.clear()
            file.seek(self._end)
            text = file.read(MOST_ADDED)
        whole = text.rfind(b"\n") + 1
        if not whole and len(text) == MOST_ADDED:  # a part of a line that is too long to be a row
            whole = len(text)
        self._end += whole
        for row in _rows(text[:whole].splitlines(), self._names):
            value = next((row[name] for name in self._names if name in row), None)
            if value is not None:
                self._found.append((row.get("step", 0), value))


def _rows(lines: Iterable[bytes], names: Collection[str]) -> Iterator[Row]:
    names = ("step", "time/wall_s", *names)
    for line in lines:
        with suppress(ValueError, AttributeError):
            row = parse_line(line)
            yield {name: value for name in names if _is_number(value := row.get(name))}


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300  # and no NaN


def _spread(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield `ROWS` evenly spread lines of a large file, and the last line."""
    for number in range(ROWS):
        file.seek(size * number // ROWS)
        if number:
            file.readline(LONGEST_LINE)  # the rest of a line
        yield file.readline(LONGEST_LINE)
    file.seek(size - LONGEST_LINE)
    yield file.read(LONGEST_LINE).rstrip().rpartition(b"\n")[2]


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield blocks of whole lines. A line that is too long comes in pieces, which are not JSON."""
    while block := file.read(BLOCK):
        if not block.endswith(b"\n"):
            block += file.readline(LONGEST_LINE)  # the rest of its last line
        yield block


def _blocks_before(end: int, file: IO[bytes]) -> Iterator[bytes]:
    """Yield blocks of whole lines before a position, the last block first."""
    first = max(end - MOST_SEARCHED, 0)
    while end > first:
        begin = _next_line(max(end - BLOCK, 0), file)
        if begin >= end:
            raise ValueError(f"a line has more than {BLOCK:,} bytes")
        file.seek(begin)
        yield file.read(end - begin)
        end = begin


def _end_of(steps: int, file: IO[bytes], end: int) -> int:
    """Return the position at which the rows of at most `steps` steps end. Steps grow from row to
    row."""
    begin = 0
    while begin < end:
        middle = (begin + end) // 2
        at = _next_line(middle, file)
        line = b""
        if at < end:
            file.seek(at)
            line = file.readline(LONGEST_LINE + 1)
        if line and parse_line(line)["step"] <= steps:
            begin = at + len(line)
        else:
            end = middle
    return begin


def _whole(file: IO[bytes]) -> int:
    """Return where the last whole line ends: a killed run may have begun another one."""
    size = os.fstat(file.fileno()).st_size
    file.seek(max(size - LONGEST_LINE, 0))
    tail = file.read(LONGEST_LINE)
    return size - len(tail) + tail.rfind(b"\n") + 1 if b"\n" in tail else size


def _next_line(position: int, file: IO[bytes]) -> int:
    """Return the position of the first line that begins at or after `position`.

    Raises:
        ValueError: the line before it is too long.
    """
    if not position:
        return 0
    file.seek(position - 1)
    rest = file.readline(LONGEST_LINE + 1)
    if len(rest) > LONGEST_LINE:
        raise ValueError(f"a line has more than {LONGEST_LINE:,} bytes")
    return position - 1 + len(rest)
