"""Finds and reads profilers' traces: one file, or a folder of them."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

from flatout_explain.errors import FlatoutError, NotInstalledError, damage, one_line
from flatout_explain.installing import install

if TYPE_CHECKING:
    from flatout_explain.trace.events import Trace

LARGEST = 1 << 29  # bytes of a trace, unpacked
ENDINGS = (".json", ".json.gz", ".xplane.pb")
RANKS = 64  # files of one folder that are read
WRITING_S = 120.0  # the processes of one run write their traces within this time
SPAN = re.compile(r"(.+)\.(\d{12,20})\.pt\.trace\.json(?:\.gz)?")
"""Names of PyTorch's files: the worker, which is one process, and the time (ms or ns since 1970). A
schedule that repeats writes one in each cycle."""


def is_trace(path: Path) -> bool:
    """Return whether a path looks like a profiler's trace or a folder of them."""
    if path.is_dir():
        return bool(_files(path))
    return path.is_file() and (path.name.endswith((".gz", ".pb")) or _has_events(path))


def _has_events(path: Path) -> bool:
    """Return whether a file begins as a trace in Chrome's format does."""
    try:
        with _opened(path) as file:
            return b'"traceEvents"' in file.read(1 << 20)
    except (OSError, EOFError, zlib.error):
        return False


def require_numpy(what: str) -> None:
    """Raise `NotInstalledError` if NumPy is missing, which `what` needs."""
    if find_spec("numpy") is None:
        raise NotInstalledError(f"{what} needs NumPy: {install('traces')}.")


def load(path: Path) -> list[Trace]:
    """Read a trace, or a trace of each process.

    Raises:
        FlatoutError: it is none, is damaged or too large, or a folder holds several runs.
        NotInstalledError: NumPy is missing.
    """
    require_numpy("a profiler's trace")
    chosen = _chosen(path) if path.is_dir() else {path: 0}
    found = {file: replace(_read(file), earlier=earlier) for file, earlier in chosen.items()}
    if _several_runs(found):
        names = ", ".join(file.name for file in [*chosen][-3:])
        raise FlatoutError(
            f"{path} holds {len(found)} recordings that are not of processes of one run: name one "
            f"of them ({names})."
        )
    return [*found.values()]


def _several_runs(found: Mapping[Path, Trace]) -> bool:
    """Return whether two traces have one rank, or traces without a rank were written at times that
    are too far apart for one recording."""
    ranks = [trace.rank for trace in found.values() if trace.rank is not None]
    if len({*ranks}) < len(ranks):
        return True
    if len(ranks) == len(found):
        return False
    times = [written for file in found if (written := _written_s(file)) is not None]
    longest = max((end - begin for begin, end in (one.extent for one in found.values())), default=0)
    return len(times) > 1 and max(times) - min(times) > longest + WRITING_S


def _written_s(file: Path) -> float | None:
    """Return the seconds since 1970 that a file of PyTorch's has in its name, or None."""
    if (span := SPAN.fullmatch(file.name)) is None:
        return None
    time = int(span[2])
    return time / (1e9 if time > 10**16 else 1e3)


def _files(folder: Path) -> list[Path]:
    """Return the traces of a folder; JAX and TensorFlow write theirs into folders of their own."""
    found = [*folder.glob("*"), *folder.glob("plugins/profile/*/*")]
    files = (file for file in found if file.name.endswith(ENDINGS) and file.is_file())
    return sorted(file for file in files if file.suffix == ".pb" or _has_events(file))


def _chosen(folder: Path) -> dict[Path, int]:
    """Return the newest file of each process in one recording, with the number of its earlier
    ones."""
    files = _files(folder)
    runs = sorted({file.parent for file in files})
    if len(runs) > 1:
        names = ", ".join(str(run.relative_to(folder)) for run in runs[-3:])
        raise FlatoutError(f"{folder} holds {len(runs)} recordings: name one of them ({names}).")
    planes = {file.name.removesuffix(".xplane.pb") for file in files if file.suffix == ".pb"}
    # The same recording in Chrome's format has fewer events.
    files = [f for f in files if f.suffix == ".pb" or f.name.split(".trace.json")[0] not in planes]
    workers = defaultdict[str, list[tuple[int, Path]]](list)
    for file in files:
        span = SPAN.fullmatch(file.name)
        worker, time = (file.name, 0) if span is None else (span[1], int(span[2]))
        workers[worker].append((time, file))
    if len(workers) > RANKS:
        raise FlatoutError(
            f"{folder} holds {len(workers)} traces, and at most {RANKS} are read: move some away."
        )
    return {max(spans)[1]: len(spans) - 1 for spans in workers.values()}


def _read(path: Path) -> Trace:
    from flatout_explain.trace import chrome, xplane

    try:
        if path.stat().st_size > LARGEST:
            raise FlatoutError(f"{path} is larger than {LARGEST >> 20:,} MiB: record fewer steps.")
        if path.name.endswith(".pb"):
            return xplane.read(path)
        return chrome.read(_contents(path))
    except (OSError, EOFError, zlib.error) as error:
        raise FlatoutError(f"{path} cannot be read: {damage(error)}.") from None
    except MemoryError:
        raise FlatoutError(f"{path} needs more memory than is free: record fewer steps.") from None
    except (ValueError, ArithmeticError, LookupError, TypeError, RecursionError) as error:
        raise FlatoutError(
            f"{path} is not a profiler's trace, or is damaged ({one_line(error)[:200]}): record it "
            "again."
        ) from None


def _opened(path: Path) -> gzip.GzipFile | BufferedReader:
    """Open a file, unpacked if it is compressed."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if packed else path.open("rb")


def _contents(path: Path) -> bytes:
    """Return a file's bytes, unpacked."""
    with _opened(path) as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise FlatoutError(
            f"{path} is larger than {LARGEST >> 20:,} MiB when unpacked: record fewer steps."
        )
    return data
