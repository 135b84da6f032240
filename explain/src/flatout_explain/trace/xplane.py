"""Traces in XLA's own format (``*.xplane.pb``), as JAX and TensorFlow write them.

A file is a protocol buffer, `XSpace` of tsl/profiler/protobuf/xplane.proto: planes (a device, the
host) have lines (a stream, a thread), and lines have events. Only the fields that are needed are
read; the numbers below are theirs in that file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flatout_explain.trace.chrome import TENSORFLOW, add
from flatout_explain.trace.collecting import Collected
from flatout_explain.trace.events import NONE, Trace

PLANES = 1  # of a space
NAME, LINES, EVENT_NAMES, STAT_NAMES = 2, 3, 4, 5  # of a plane; names are maps
KEY, VALUE = 1, 2  # of a map's entry; the value's name is its field NAME
LINE_ID, LINE_NAME, BEGIN_NS, EVENTS = 1, 2, 3, 4  # of a line
EVENT_KIND, OFFSET_PS, DURATION_PS, STATS = 1, 2, 3, 4  # of an event
STAT_KIND, STAT_UNSIGNED, STAT_SIGNED = 1, 3, 4  # of a stat

MOST_NAMES = 1_000_000

WORKING = ("/device:", "/host:CPU")
"""How the names of planes begin whose events are read."""


def read(path: Path) -> Trace:
    """Read a file.

    Raises:
        ValueError: it is damaged, or has nothing that a trace is made of.
    """
    reader = _Reader()
    for field, plane in _fields(memoryview(path.read_bytes())):
        if field == PLANES:
            reader.plane(_part(plane))
    profiler = "TensorFlow" if TENSORFLOW in reader.collected.names else "JAX"
    return reader.collected.trace(profiler)


class _Reader:
    """Collects the events of a space. Names may come after what uses them, and a damaged file may
    have any number of parts, so that messages are gone through twice and nothing is kept."""

    def __init__(self) -> None:
        self.collected = Collected(unit=1e-9)
        # Of the first line, in nanoseconds since 1970: differences fit a float, such times do not.
        self.origin: int | None = None

    def plane(self, plane: memoryview) -> None:
        """Add the events of a device or of the host."""
        name, events, stats = "", dict[int, str](), dict[int, str]()
        for field, value in _fields(plane):
            if field == NAME:
                name = _text(value)
            elif field in (EVENT_NAMES, STAT_NAMES):
                key, word = _entry(_part(value))
                (events if field == EVENT_NAMES else stats)[key] = word
                if len(events) + len(stats) > MOST_NAMES:
                    raise ValueError(f"it has more than {MOST_NAMES:,} names")
        if not name.startswith(WORKING):
            return
        correlation = next((key for key, word in stats.items() if word == "correlation_id"), None)
        for field, line in _fields(plane):
            if field == LINES:
                self._line(name, _part(line), events, correlation)

    def _line(self, plane: str, line: memoryview, names: dict[int, str], stat: int | None) -> None:
        """Add the events of a stream or a thread; `stat` is the number of their correlation."""
        name, began, thread = "", 0, 0
        for field, value in _fields(line):
            if field == LINE_ID:
                thread = _number(value)
            elif field == LINE_NAME:
                name = _text(value)
            elif field == BEGIN_NS:
                began = _number(value)
        if self.origin is None:
            self.origin = began
        for field, event in _fields(line):
            if field == EVENTS:
                kind, offset, duration, correlation = _event(_part(event), stat)
                begin = (began - self.origin) + offset / 1000
                add(
                    self.collected, plane, (name, thread), names.get(kind, ""), begin,
                    begin + duration / 1000, correlation,
                )  # fmt: skip


def _event(event: memoryview, stat: int | None) -> tuple[int, int, int, int]:
    """Return an event's kind, offset and duration in picoseconds, and correlation."""
    kind, offset, duration, correlation = 0, 0, 0, NONE
    for field, value in _fields(event):
        if field == EVENT_KIND:
            kind = _number(value)
        elif field == OFFSET_PS:
            offset = _number(value)
        elif field == DURATION_PS:
            duration = _number(value)
        elif field == STATS and stat is not None:
            found = _correlation(_part(value), stat)
            correlation = correlation if found is None else found
    return kind, offset, duration, correlation


def _correlation(stat: memoryview, wanted: int) -> int | None:
    """Return the value of a stat if it is the wanted one."""
    values = dict(_fields(stat))
    if values.get(STAT_KIND, 0) != wanted:
        return None
    return _number(values.get(STAT_UNSIGNED, values.get(STAT_SIGNED, 0)))


def _entry(entry: memoryview) -> tuple[int, str]:
    """Return the key and the name of an entry of `EVENT_NAMES` or `STAT_NAMES`."""
    key, word = 0, ""
    for field, value in _fields(entry):
        if field == KEY:
            key = _number(value)
        elif field == VALUE:
            names = (_text(inner) for number, inner in _fields(_part(value)) if number == NAME)
            word = next(names, "")
    return key, word


# --- Protocol buffers -------------------------------------------------------------------------
# https://protobuf.dev/programming-guides/encoding: a field is its number and a kind of value:
# a number, eight bytes, a part with its length, or four bytes.

NUMBER, EIGHT, PART, FOUR = 0, 1, 2, 5


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the fields of a message in order: number, and value."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        kind = key & 7
        if kind == NUMBER:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == PART:
            size, at = _varint(data, at)
        elif kind in (EIGHT, FOUR):
            size = 8 if kind == EIGHT else 4
        else:
            raise ValueError(f"not a readable XPlane file (a field of kind {kind})")
        if at + size > end:
            raise ValueError("not a readable XPlane file (it is cut off)")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, and the position behind it."""
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("not a readable XPlane file (a number without an end)")


def _number(value: int | memoryview) -> int:
    """Return a field's number; negative ones are the complement of 64 bits."""
    if not isinstance(value, int):
        raise ValueError("not a readable XPlane file (a number is missing)")
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _part(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("not a readable XPlane file (a number in place of a message)")
    return value


def _text(value: int | memoryview) -> str:
    return bytes(_part(value)).decode("utf-8", "replace")
