"""Recorded evidence: what the probe wrote in each process, and what the monitor saw beside it.

It is plain data, saved as JSON with ``--save`` and diagnosed anywhere: the rules read nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout.errors import FlatoutError, one_line
from flatout.hardware.monitor import MonitorSample

VERSION = 1

CALL, RETURN, C_CALL, C_RETURN = 0, 1, 2, 3
"""Kinds of a window's events, as the probe numbers them."""


@dataclass(frozen=True)
class Code:
    """One function of the program.

    Attributes:
        file, line: where it is.
        plain: its name, without its class's.
        owner: what the class of its first argument is called and offers, where it has one.
        learns: it, or another method of that class, takes gradients.
    """

    file: str
    plain: str
    line: int
    owner: dict[str, Any] | None = None
    learns: bool = False

    def has(self, *attributes: str) -> bool:
        """Whether the class of the first argument offers all of these."""
        return self.owner is not None and all(name in self.owner["has"] for name in attributes)


UNKNOWN = Code("<unknown>", "<unknown>", 0)


@dataclass(frozen=True)
class Leaf:
    """What a frame was executing: the source text and what it calls, as far as known.

    Attributes:
        text: the expression.
        call: dotted name of what it calls; ``@`` for a matrix product, ``+`` for other operators.
        kind: type of the called object (``type``), of compiled functions also ``learns``.
    """

    text: str = ""
    call: str = ""
    kind: dict[str, Any] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """The last part of the call's name."""
        return self.call.rpartition(".")[2]


@dataclass(frozen=True)
class Stack:
    """One place of a thread: (code, line) of each frame, innermost first."""

    frames: tuple[tuple[int, int], ...]
    at: int


@dataclass(frozen=True)
class Sample:
    """Where a thread was at `t` (seconds on the machine's clock), standing for `dt` seconds."""

    t: float
    dt: float
    lane: int
    stack: int
    compilation: int


@dataclass(frozen=True)
class Window:
    """Every call of the main thread for some milliseconds.

    Attributes:
        t: when it began.
        events: (nanoseconds since the last, kind, code or name, line of the caller).
        names: of the built-in functions.
        stack: (code, line) at its beginning, innermost first.
        details: (event, kind, class, batch, gradients on) of calls looked at closely.
        cost: nanoseconds that recording one event cost the program.
    """

    t: float
    events: tuple[tuple[int, int, int, int], ...]
    names: tuple[str, ...]
    stack: tuple[tuple[int, int], ...]
    details: tuple[tuple[Any, ...], ...]
    cost: float


@dataclass
class Process:
    """One Python process of the program; times are seconds on the machine's monotonic clock.

    `failure` says what ended its probe early, `by_thread` why a thread had to sample all of it.
    Where it was not `timed` the order of its samples tells nothing.
    """

    pid: int
    started: float
    ended: float | None
    python: tuple[int, ...]
    argv: list[str]
    stdlib: str
    codes: list[Code] = field(default_factory=list)
    leaves: dict[tuple[int, int], Leaf] = field(default_factory=dict)
    stacks: dict[int, Stack] = field(default_factory=dict)
    lanes: dict[int, dict[str, Any]] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    libraries: dict[str, str] = field(default_factory=dict)
    returns: dict[int, str] = field(default_factory=dict)
    torch_threads: int | None = None
    failure: str | None = None
    by_thread: str | None = None
    timed: bool = True

    def leaf(self, stack: Stack) -> Leaf:
        """What the innermost frame of a stack was executing."""
        return self.leaves.get((stack.frames[0][0], stack.at), Leaf())


@dataclass
class Evidence:
    """Everything that was recorded of one program.

    Attributes:
        command: its command line.
        machine: facts: ``cores``, ``gpus`` (list of names), ``cpu``; where it was measured,
            ``together``: how many times the work of one core alone they all do at once.
        began, ended: on the monotonic clock: the start, and the end of observation.
        processes: in order of their start.
        monitor: samples of the hardware.
        notes: what could not be seen.
        finished: whether the program had ended.
    """

    command: list[str]
    machine: dict[str, Any]
    began: float
    ended: float
    processes: list[Process]
    monitor: list[MonitorSample]
    notes: list[str]
    finished: bool = True


# --- Reading and writing ----------------------------------------------------------------------


def rows_of(folder: Path) -> list[list[dict[str, Any]]]:
    """The probe's lines by process; a line that a killed process left half is passed over."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        rows = []
        for line in path.read_text(errors="replace").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
        if rows and rows[0].get("k") == "process":
            found.append(rows)
    return found


def process(rows: Sequence[dict[str, Any]]) -> Process:
    """One process from its lines."""
    first = rows[0]
    found = Process(
        pid=first["pid"], started=first["t"], ended=None,
        python=tuple(first["python"]), argv=first["argv"], stdlib=first["stdlib"],
        timed=first.get("timed", True),
    )  # fmt: skip
    for row in rows[1:]:
        _add(found, row)
    count = len(found.codes)  # a killed process may have left references to what it did not write

    def whole(frames: Iterable[tuple[int, int]]) -> bool:
        return all(code < count for code, _ in frames)

    found.stacks = {at: stack for at, stack in found.stacks.items() if whole(stack.frames)}
    found.windows = [
        window
        for window in found.windows
        if whole((what, 0) for _, kind, what, _ in window.events if kind == CALL)
        and whole(window.stack)
    ]
    found.returns = {code: kinds for code, kinds in found.returns.items() if code < count}
    return found


def _add(to: Process, row: dict[str, Any]) -> None:
    kind = row["k"]
    if kind == "samples":
        to.samples += [Sample(to.started + t, *rest) for t, *rest in row["d"]]
    elif kind == "stack":
        to.stacks[row["i"]] = Stack(_pairs(row["f"]), row["at"])
    elif kind == "code":
        index = row["i"]  # two threads write: not always in order
        to.codes += [UNKNOWN] * (index + 1 - len(to.codes))
        owner = row.get("self")
        learns = bool(row.get("learns") or (owner and owner.get("learns")))
        to.codes[index] = Code(row["file"], row["plain"], row["line"], owner, learns)
    elif kind == "leaf":
        to.leaves[row["c"], row["at"]] = Leaf(
            row.get("text") or "", row.get("call") or "", row.get("kind") or {}
        )
    elif kind == "lane":
        to.lanes[row["i"]] = row
    elif kind == "window":
        to.windows.append(
            Window(
                to.started + row["t"], tuple(map(tuple, row["events"])), tuple(row["names"]),
                _pairs(row["stack"]), tuple(map(tuple, row["details"])), row["cost"],
            )
        )  # fmt: skip
    elif kind == "returns":
        to.returns[row["c"]] = row["kinds"]
    elif kind == "library":
        to.libraries[row["name"]] = row["version"]
    elif kind == "torch":
        to.torch_threads = row["threads"]
    elif kind == "end":
        to.ended = row["t"]
    elif kind == "failed":
        to.failure = row["error"]
    elif kind == "thread":
        to.by_thread = row["why"]


def _pairs(flat: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(zip(flat[0::2], flat[1::2], strict=True))


def save(path: Path, meta: dict[str, Any], rows: Iterable[Sequence[dict[str, Any]]]) -> None:
    """Write evidence to one JSON file."""
    whole = {"flatout_evidence": VERSION, **meta, "processes": list(rows)}
    path.write_text(json.dumps(whole))


def build(meta: dict[str, Any], rows: Iterable[Sequence[dict[str, Any]]]) -> Evidence:
    """Evidence from what was recorded."""
    processes = sorted(map(process, rows), key=lambda process: process.started)
    monitor = [MonitorSample.from_json(row) for row in meta["monitor"]]
    return Evidence(**{**meta, "monitor": monitor}, processes=processes)


def load(path: Path) -> Evidence:
    """Read evidence that `save` wrote.

    Raises:
        FlatoutError: it is not such a file, or one of a newer version.
    """
    try:
        whole = json.loads(path.read_text())
        version = whole.pop("flatout_evidence")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise FlatoutError(
            f"{path} is not evidence that flatout explain --save wrote ({error})."
        ) from None
    if version != VERSION:
        raise FlatoutError(
            f"{path} is evidence of version {version}, and this Flatout reads {VERSION}: "
            "diagnose it with the version that wrote it."
        )
    try:
        return build(whole, whole.pop("processes"))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise FlatoutError(
            f"{path} is damaged evidence ({type(error).__name__}: {one_line(error)}); "
            "record it again."
        ) from None
