"""Traces in Chrome's JSON format, as PyTorch, JAX and TensorFlow write them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from flatout_explain.trace.collecting import Collected, Thread
from flatout_explain.trace.events import NONE, Kind, Trace

Id = int | float | str | None
"""Processes, threads and streams are numbers or texts, both in one file."""

DEVICE = {
    "kernel": Kind.KERNEL, "memcpy": Kind.COPY, "gpu_memcpy": Kind.COPY, "memset": Kind.SET,
    "gpu_memset": Kind.SET,
}  # fmt: skip
HOST = {
    "operator": Kind.OPERATION, "cpu_op": Kind.OPERATION, "user_annotation": Kind.RANGE,
    "python_function": Kind.PYTHON, "runtime": Kind.CALL, "cuda_runtime": Kind.CALL,
    "cuda_driver": Kind.CALL, "xpu_runtime": Kind.CALL, "privateuse1_runtime": Kind.CALL,
}  # fmt: skip
IGNORED = {
    "async", "ac2g", "async_cpu_to_gpu", "fwdbwd", "trace", "gpu_user_annotation", "overhead",
    "cuda_sync", "cpu_instant_event", "cuda_profiler_range", "async_gpu",
}  # fmt: skip
"""PyTorch's categories of events. Those that are ignored repeat others, or take no time."""

NO_ARGUMENTS = msgspec.Raw(b"null")

FRAMEWORK_ROWS = re.compile(r"Stream\b|XLA Ops$")
"""Rows of a device that are recorded in JAX's and TensorFlow's traces; its other rows ("Steps",
"TensorFlow Ops", "XLA Modules") are derived from these."""


class Skipped(msgspec.Struct, gc=False, array_like=True):
    """An array that is not read: whatever it holds is not built."""


Scalar = int | float | str | bool | Skipped | None


class Arguments(msgspec.Struct, gc=False, rename={"id_": "correlation_id"}):
    """The arguments of an event that are read. `id_` is the correlation in JAX's traces."""

    name: Scalar = None  # of a process or a thread
    correlation: Scalar = None
    id_: Scalar = None
    device: Scalar = None


class Event(msgspec.Struct, gc=False):
    """The keys of an event that are read."""

    ph: str = ""
    cat: str | None = None
    name: Scalar = None
    pid: Id = None
    tid: Id = None
    ts: float | str | None = None
    dur: float | str | None = None
    args: msgspec.Raw = NO_ARGUMENTS  # read for each event in turn


class Device(msgspec.Struct, frozen=True):
    """The keys of a device's description that are read."""

    id: Scalar = None
    name: Scalar = ""


class Processes(msgspec.Struct, frozen=True):
    """The keys of the description of a training with several processes that are read."""

    rank: Scalar = None


class Document(msgspec.Struct):
    """The keys of a file that are read."""

    traceEvents: list[Event]  # noqa: N815
    deviceProperties: list[Device] = []  # noqa: N815
    distributedInfo: Processes = Processes()  # noqa: N815


LATEST = 1e19  # microseconds since 1970, and any other clock's
OBJECT_BYTES = 420  # the most memory that an object of the file takes, as an event of the trace
MOST_BYTES = 2 << 30

TENSORFLOW = "ExecutorState::Process"  # an event of its runtime

NOT_NUMBERS = re.compile(rb"(?<=[:\[,])(\s*)-?(nan|inf|infinity)\b", re.IGNORECASE)
"""Values that JSON does not have, and some versions of PyTorch wrote."""


def read(data: bytes) -> Trace:
    """Read a file's contents.

    Raises:
        ValueError: it is no trace in this format.
    """
    objects = data.count(b"{")
    if objects * OBJECT_BYTES + len(data) > MOST_BYTES:
        raise ValueError(
            f"its {objects:,} objects would take more than {MOST_BYTES >> 20:,} MiB of memory: "
            "record fewer steps"
        )
    try:
        document = msgspec.json.decode(data, type=Document)
    except ValueError:
        text = NOT_NUMBERS.sub(rb"\1null", data).decode("utf-8", "replace")
        document = msgspec.json.decode(text, type=Document)
    processes = {pid: name for (pid, _), name in _named(document, "process_name").items()}
    if any(name.startswith(("/device:", "/host:")) for name in processes.values()):
        return _framework(document, processes)
    return _pytorch(document)


def _pytorch(document: Document) -> Trace:
    """Read a trace of PyTorch's profiler, whose events have categories."""
    collected = Collected(unit=1e-6)
    for event, args, begin, end in _timed(document.traceEvents):
        category = (event.cat or "").lower()
        name, correlation = str(event.name), _number(args.correlation)
        if (kind := HOST.get(category)) is not None:
            thread = (f"thread {event.tid}", str(event.pid))
            collected.on_host(thread, kind, name, begin, end, correlation)
        elif (kind := DEVICE.get(category)) is not None:
            device = event.pid if args.device is None else args.device
            collected.on_device(
                "gpu" if device is None else f"gpu:{device}", kind, name, begin, end, correlation
            )
        elif category and category not in IGNORED:
            collected.unknown[category] += 1
    if "flatout" in collected.unknown:
        raise ValueError("it is Flatout's own trace: explain the folder of its run")
    for properties in document.deviceProperties:
        collected.models[f"gpu:{properties.id}"] = str(properties.name)
    rank = document.distributedInfo.rank
    return collected.trace("PyTorch", rank if isinstance(rank, int) else None)


def _framework(document: Document, processes: dict[str, str]) -> Trace:
    """Read a trace of JAX's or TensorFlow's profiler, whose processes are devices or the host."""
    collected = Collected(unit=1e-6)
    rows = _named(document, "thread_name")
    for event, args, begin, end in _timed(document.traceEvents):
        process = processes.get(str(event.pid), "")
        row = rows.get((str(event.pid), str(event.tid)), "")
        thread = (str(event.pid), str(event.tid))
        add(collected, process, (row, thread), str(event.name), begin, end, _number(args.id_))
    return collected.trace("TensorFlow" if TENSORFLOW in collected.names else "JAX")


def add(
    collected: Collected, process: str, row: Thread, name: str, begin: float, end: float,
    correlation: int,
) -> None:  # fmt: skip
    """Add an event of a trace of JAX or TensorFlow.

    Args:
        process: ``/device:GPU:0`` or ``/host:CPU``.
        row: a stream or a thread.
    """
    if process.startswith("/device:"):
        kind, _, number = process.removeprefix("/device:").partition(":")
        if kind not in ("GPU", "TPU"):
            collected.unknown[process] += 1
        elif FRAMEWORK_ROWS.match(row[0]):
            device = f"{kind.lower()}:{number.partition(' ')[0]}"
            collected.on_device(device, Kind.KERNEL, name, begin, end, correlation)
    elif process.startswith("/host:"):
        kind = Kind.OPERATION
        if name.startswith("$"):
            kind = Kind.PYTHON
        elif correlation != NONE:
            kind = Kind.CALL
        collected.on_host(row, kind, name, begin, end, correlation)


def _named(document: Document, of: str) -> dict[tuple[str, str], str]:
    """Return the names of processes or threads, from events named `of`, by both numbers."""
    return {
        (str(event.pid), str(event.tid)): str(arguments(event.args).name)
        for event in document.traceEvents
        if event.ph == "M" and event.name == of and is_object(event.args)
    }


DECODER = msgspec.json.Decoder(Arguments)


def is_object(text: msgspec.Raw) -> bool:
    """Return whether the text of a value is that of an object."""
    return bytes(text)[:1] == b"{"


def arguments(text: msgspec.Raw) -> Arguments:
    """Return the arguments of an event from their text."""
    return DECODER.decode(text) if is_object(text) else Arguments()


def _timed(events: Iterable[Event]) -> Iterable[tuple[Event, Arguments, float, float]]:
    """Yield the events that have a beginning and an end, with their arguments."""
    for event in events:
        if event.ph == "X" and event.ts is not None:
            begin, lasts = float(event.ts), float(event.dur or 0.0)
            if abs(begin) < LATEST and 0.0 <= lasts < LATEST:
                yield event, arguments(event.args), begin, begin + lasts


def _number(value: Any) -> int:
    """Return a value as a correlation; `NONE` if it is none."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return NONE
    return number if 0 < number < 1 << 53 else NONE
