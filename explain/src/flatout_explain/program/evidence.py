"""Recorded evidence: the probe's lines of each process, and the monitor's samples.

It is plain data, saved as JSON with ``--save``; the rules read nothing else.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout_explain import documents, output_file
from flatout_explain.errors import FlatoutError
from flatout_explain.hardware.monitor import MonitorSample
from flatout_explain.output import command_name, json_text
from flatout_explain.program.codes import (
    GENERATED,
    UNKNOWN,
    Code,
    Flow,
    Leaf,
    LineValues,
    Made,
    Statement,
)
from flatout_explain.program.command_line import is_inline
from flatout_explain.program.evidence_check import refuse_impossible
from flatout_explain.program.garbage import Collections, collections

VERSION = 2

MOST_BYTES = 64 << 20
"""Maximum size of a file of evidence."""

KILLED = 128 + 9
"""Exit code of a program that SIGKILL ended."""

MOST_LOST = 100_000
"""Rows that a killed process may have lost."""

Recording = tuple[dict[str, Any], list[list[dict[str, Any]]]]
"""Evidence as it is saved: facts about the program, and each process's rows."""

Span = tuple[int, int, str]
"""First and last line that the program marks, and the mark's text."""

MISSING = ("", "argument", "function")
"""Parts of the function to count (``--count``) that a process may lack."""

CALL, RETURN, C_CALL = 0, 1, 2  # kinds of a window's events, as in the probe


@dataclass(frozen=True)
class Stack:
    """A thread's stack: (code, line) of each frame, innermost first."""

    frames: tuple[tuple[int, int], ...]
    at: int


@dataclass(frozen=True)
class Sample:
    """A thread's stack at `t` (seconds on the machine's clock); it represents `dt` seconds."""

    t: float
    dt: float
    lane: int
    stack: int
    compilation: int
    worked: float | None = None  # seconds in which the thread worked, or waited for a core
    elsewhere: float | None = None  # CPU seconds of the other threads; of the main thread only
    # code and line of the learning call that JAX's device computed while the thread waited for it
    learning: int | None = None
    learning_line: int = 0


@dataclass(frozen=True)
class Window:
    """Every call of the main thread for some milliseconds."""

    t: float  # its begin
    # (nanoseconds since the last, kind, code or name, line of the caller)
    events: tuple[tuple[int, int, int, int], ...]
    names: tuple[str, ...]  # of the built-in functions
    stack: tuple[tuple[int, int], ...]  # (code, line) at its begin, innermost first
    # (event, kind, class, batch, gradients on) of relevant calls
    details: tuple[tuple[Any, ...], ...]
    cost: float  # nanoseconds that recording one event took


@dataclass
class Process:
    """One Python process of the program; times are seconds on the machine's monotonic clock.

    `failure` says what ended its probe early, `by_thread` why a second thread sampled it, `error`
    the type and text of the exception that ended the process. One that was read from `outside` has
    no windows.
    """

    pid: int
    started: float
    argv: list[str]
    stdlib: str
    codes: list[Code]
    leaves: dict[tuple[int, int], Leaf]
    lines: dict[tuple[int, int], str]  # source of the program's lines, by (code, line)
    made: dict[tuple[int, int], Made]  # and what those wait for that may wait for a device
    marks: dict[int, tuple[Span, ...]]  # by code
    values: dict[tuple[int, int], LineValues]  # by (code, line)
    compiled: dict[tuple[int, int], bool]  # lines that call compiled functions: with gradients
    stacks: dict[int, Stack]
    lanes: dict[int, dict[str, Any]]
    folder: str  # of the program's own files, or empty: that of its script, or its package's
    samples: list[Sample]
    windows: list[Window]
    libraries: frozenset[str]  # the big ones that it has loaded
    returns: dict[int, str]
    torch_threads: int | None
    failure: str | None
    by_thread: str | None
    error: tuple[str, str] | None
    outside: bool = False
    main: str = ""  # the file of its main module, or empty
    ended: float | None = None  # where the program came to its end
    parent: int | None = None  # where counting was asked for: the process that started it
    rank: int | None = None  # its number among processes that exchange data, if it has one
    # by what was counted, (time on the monotonic clock, how many until then)
    counts: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    missing: str | None = None  # of `MISSING`; None if it is unknown
    garbage: list[Collections] = field(default_factory=list)  # in order; empty where not counted
    gil: bool = True  # whether the interpreter has a lock

    def leaf(self, stack: Stack) -> Leaf:
        """Return the expression of a stack's innermost frame."""
        return self.leaves.get((stack.frames[0][0], stack.at), Leaf())


@dataclass
class Evidence:
    """The recording of a program."""

    command: list[str]  # its command line
    # ``cores``, ``gpus`` (list of names), ``cpu``; if measured, ``together``: the speed of all
    # cores relative to one core alone
    machine: dict[str, Any]
    began: float  # of observation, on the monotonic clock
    ended: float
    processes: list[Process]  # in order of their start
    monitor: list[MonitorSample]  # samples of the hardware
    notes: list[str]  # what could not be observed
    finished: bool = True  # whether the program had ended
    code: int | None = None  # then its exit code, 128 + n if signal n ended it; None if unknown
    why: str = ""  # why it failed, if that is known and no exception says it
    oom: str = ""  # whose full memory made the kernel end it, or one of its processes
    unobserved: MonitorSample | None = None  # right after the observation, if it still ran
    phases: tuple[str, ...] = ()  # ``PHASE=MODULE:FUNCTION``: which phases the user's functions are
    count: str = ""  # the function whose calls were counted (``--count``), if any


# --- Reading and writing ----------------------------------------------------------------------


def rows_of(folder: Path) -> list[list[dict[str, Any]]]:
    """Return the complete lines of the probe by process; that of the process itself is first.

    A fork within a window of counted calls can leave a line before it.
    """
    processes = []
    for path in sorted(folder.glob("*.jsonl")):
        rows, text = list[dict[str, Any]](), ""
        with suppress(OSError):  # the program has just deleted or replaced it
            text = path.read_text(errors="replace")
        for line in text.splitlines():
            with suppress(ValueError):
                if isinstance(row := json.loads(line), dict):
                    rows.append(row)
        own = [row for row in rows if row.get("k") == "process"]
        if own:
            processes.append([*own, *(row for row in rows if row.get("k") != "process")])
    return processes


def process(rows: Sequence[dict[str, Any]]) -> Process:
    """Build a process from its lines."""
    first, started = rows[0], rows[0]["t"]
    of: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        of[row["k"]].append(row)
    inline = is_inline([*map(str, first["argv"])])
    codes = {row["i"]: _code(row, inline) for row in of["code"]}  # two threads write: in any order
    count = max(codes, default=-1) + 1
    if count > len(rows) + MOST_LOST:
        raise ValueError(f"a function has the number {count - 1}")

    def known(numbers: Iterable[int]) -> bool:  # a killed process may leave dangling references
        return all(code < count for code in numbers)

    def last(kind: str, name: str) -> Any:
        return of[kind][-1][name] if of[kind] else None

    return Process(
        pid=first["pid"], started=started, argv=first["argv"],
        stdlib=first["stdlib"],
        codes=[codes.get(index, UNKNOWN) for index in range(count)],
        leaves={(row["c"], row["at"]): _leaf(row) for row in of["leaf"]},
        lines={(row["c"], row["line"]): row["text"] for row in of["site"]},
        made={
            (row["c"], row["line"]): Made(**row["made"]) for row in of["site"] if row.get("made")
        },
        marks={
            row["c"]: tuple((int(a), int(b), str(text)) for a, b, text in row["spans"])
            for row in of["marks"]
            if row["c"] < count
        },
        values={
            (row["c"], row["line"]): LineValues(
                row.get("kinds", ""), row.get("grad"), bool(row.get("parameter"))
            )
            for row in of["values"]
        },
        compiled={(row["c"], row["line"]): bool(row["learns"]) for row in of["compiled"]},
        stacks={
            row["i"]: Stack(_pairs(row["f"]), row["at"])
            for row in of["stack"]
            if known(row["f"][::2])
        },
        lanes={row["i"]: row for row in of["lane"]},
        folder=program_folder(str(last("main", "file") or ""), str(last("main", "name") or "")),
        samples=[Sample(started + t, *rest) for row in of["samples"] for t, *rest in row["d"]],
        windows=[
            Window(started + row["t"], tuple(map(tuple, row["events"])), tuple(row["names"]),
                   _pairs(row["stack"]), tuple(map(tuple, row["details"])), row["cost"])
            for row in of["window"]
            if known(code for _, kind, code, _ in row["events"] if kind == CALL)
            and known(row["stack"][::2])
        ],
        libraries=frozenset(row["name"] for row in of["library"]),
        returns={row["c"]: row["kinds"] for row in of["returns"] if row["c"] < count},
        torch_threads=last("torch", "threads"), failure=last("failed", "error"),
        by_thread=last("thread", "why"), error=_error(of["end"]),
        outside=first.get("outside", False), main=str(last("main", "file") or ""),
        ended=last("end", "t"), parent=last("counts", "parent"),
        counts=_counts(of["counts"]),
        missing=least_missing(row.get("missing") for row in of["counts"]),
        rank=last("rank", "rank"),
        garbage=collections(of["garbage"], started),
        gil=bool(of["gil"][-1]["on"]) if of["gil"] else True,
    )  # fmt: skip


def program_folder(file: str, name: str) -> str:
    """Return the folder of the program's own files, from its main module's file and full name: that
    of the topmost package, else that of the script. It is empty for a script that an installer has
    made."""
    parts = file.replace("\\", "/").split("/")
    up = name.count(".") if name != "__main__" else 0
    folder = parts[: len(parts) - 1 - max(up - 1, 0)]
    return "" if not folder or folder[-1] in ("bin", "Scripts") else "/".join(folder)


def _error(ends: Sequence[dict[str, Any]]) -> tuple[str, str] | None:
    """Return the type and text of the exception that ended a process."""
    found = ends[-1].get("error") if ends else None
    return None if found is None else (str(found[0]), str(found[1]))


def _code(row: dict[str, Any], inline: bool) -> Code:
    file = row["file"]
    if file == "<string>" and not inline:
        file = GENERATED
    owner = row.get("self")
    learns = bool(row.get("learns") or (owner and owner.get("learns")))
    loops = tuple((int(first), int(last)) for first, last in row.get("loops", ()))
    flow, qualname = _flow(row.get("flow")), str(row.get("qualname", ""))
    yields = bool(row.get("yields"))
    return Code(file, row["plain"], row["line"], owner, learns, loops, flow, qualname, yields)


def _flow(row: dict[str, Any] | None) -> Flow | None:
    if row is None:
        return None
    names = [*row["names"], ""]  # the last one for what has no name: -1

    def named(numbers: Iterable[int]) -> tuple[str, ...]:
        return tuple(names[number] for number in numbers)

    statements = (
        Statement(first, last, named(made), frozenset(named(used)), tuple(map(named, calls)), *rest)
        for first, last, made, used, calls, *rest in row["rows"]
    )
    return Flow(tuple(row["args"]), tuple(statements), tuple(row.get("blocks", (-1,))))


def _counts(rows: Iterable[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    counts: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        for t, *totals in row["d"]:
            for unit, total in zip(row["units"], totals, strict=True):
                counts[unit].append((t, total))
    return {unit: series for unit, series in counts.items() if series[-1][1]}


def least_missing(found: Iterable[str | None]) -> str | None:
    """Return what was missing of the function to count where most of it was found."""
    known = set(found)
    return next((each for each in MISSING if each in known), None)


def _leaf(row: dict[str, Any]) -> Leaf:
    return Leaf(row.get("text") or "", row.get("call") or "", row.get("kind") or {})


def _pairs(flat: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(zip(flat[0::2], flat[1::2], strict=True))


def save(path: Path, meta: dict[str, Any], rows: Iterable[Sequence[dict[str, Any]]]) -> None:
    """Write evidence to one JSON file."""
    values = {"flatout_evidence": VERSION, **meta, "processes": list(rows)}
    output_file.write(path, json_text(values))


def build(meta: dict[str, Any], rows: Iterable[Sequence[dict[str, Any]]]) -> Evidence:
    """Build evidence from a recording."""
    processes = sorted(map(process, rows), key=lambda process: process.started)
    monitor = [documents.convert(row, MonitorSample) for row in meta["monitor"]]
    phases = tuple(map(str, meta.get("phases", ())))
    last = meta.get("unobserved")
    about = {
        "monitor": monitor, "phases": phases, "count": str(meta.get("count", "")),
        "unobserved": None if last is None else documents.convert(last, MonitorSample),
    }  # fmt: skip
    return Evidence(**{**meta, **about}, processes=processes)


def load(path: Path) -> Evidence:
    """Load evidence from a saved file; raise `OSError` or an exception of `from_json`."""
    return from_json(documents.read_json(path, limit=MOST_BYTES), path)


def from_json(values: Any, path: Path) -> Evidence:
    """Build evidence from the value of a saved file.

    Raises:
        FlatoutError: it is something else, or of another version.
        ArithmeticError, AttributeError, LookupError, TypeError, ValueError: it is damaged.
    """
    if not isinstance(values, dict) or "flatout_evidence" not in values:
        raise FlatoutError(f"{path} is not evidence that {command_name()} --save wrote.")
    version = values.pop("flatout_evidence")
    values.pop("against", None)  # runs of `--against`, whose first one this is
    if version != VERSION:
        raise FlatoutError(
            f"{path} was recorded by another version of this tool, in format {version} instead "
            f"of {VERSION}: record the program again, or explain the file with that version."
        )
    evidence = build(values, values.pop("processes"))
    refuse_impossible(evidence)
    return evidence
