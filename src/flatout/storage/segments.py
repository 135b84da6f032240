"""Replayed experience on disk: append-only segments that checkpoints refer to.

A checkpoint writes only the rows that are new since the last one, so frequent saving is cheap. A
segment is a safetensors file of whole rows, named after its first row, its end and its contents;
it is written atomically and never changed. Checkpoints store each segment's SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as dump_tensors

from flatout.errors import CheckpointError, DamagedError
from flatout.types import RowSource
from flatout_explain.files import nofollow

SMALL = 8 << 20
"""A newest segment below these bytes is merged with the next rows: fewer files."""
PIECE = 64 << 20
"""Maximum bytes of a segment with more than one row."""

_NAME = re.compile(r"rows-\d{12,}-\d{12,}-[0-9a-f]{8}\.safetensors")
_SEGMENT_FILE = re.compile(rf"{_NAME.pattern}|\.{_NAME.pattern}\.[0-9a-f]{{16}}\.part")

FINALS = "finals"
"""The name of the rows' final observations, of which there is one for each truncated step; those
of a dict observation are called ``finals/path``."""


def is_final(name: str) -> bool:
    """Return whether an array of rows holds final observations."""
    return name.partition("/")[0] == FINALS


Reference = dict[str, Any]
"""One segment: ``file``, ``first`` and ``end`` row, ``sha256``, ``bytes``."""


class SegmentStore:
    """The segments of one run, in a folder that the first write creates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._newest: list[Reference] = []
        self._cut: np.ndarray | None = None  # which episodes its last row truncates, as written

    def save(self, rows: RowSource) -> list[Reference]:
        """Write the rows that are not on disk yet.

        Returns:
            References to segments that hold all needed rows, oldest first.

        Raises:
            OSError: the disk is full or not writable; earlier segments are intact.
        """
        first, end = rows.stored
        kept = [ref for ref in self._newest if ref["end"] > first and ref["end"] <= end]
        if not all((self._folder / ref["file"]).is_file() for ref in kept):
            kept = []  # some were deleted: all needed rows are still in memory
        begin = kept[-1]["end"] if kept else first
        again = bool(kept) and kept[-1]["bytes"] < SMALL and begin < end
        if kept and self._cut is not None:  # a lost environment's episode is truncated afterwards
            cut = rows.read(begin - 1, begin)["truncated"]
            again |= not np.array_equal(cut, self._cut[None])
        if again:
            begin = max(kept.pop()["first"], first)
        written: list[Reference] = []
        try:
            while begin < end:
                row = rows.read(begin, begin + 1)
                size = sum(array.nbytes for name, array in row.items() if not is_final(name))
                stop = min(begin + max(PIECE // max(size, 1), 1), end)
                written.append(self._write(rows.read(begin, stop), begin, stop))
                begin = stop
        except OSError:
            with suppress(OSError), nofollow.folder(self._folder) as parent:
                for ref in written:  # no checkpoint refers to them, and the disk is full
                    parent.unlink(ref["file"])
            raise
        kept += written
        self._newest = kept
        self._cut = rows.read(end - 1, end)["truncated"][0].copy() if kept else None
        return list(kept)

    def resume(self, references: list[Reference]) -> None:
        """Continue from a checkpoint's segments. The newest one is written again: its last row
        changes if an episode could not be restored."""
        self._newest, self._cut = list(references[:-1]), None

    def keep_only(self, references: Iterable[Reference]) -> None:
        """Remove all other segments."""
        kept = {ref["file"] for ref in references}
        with suppress(OSError), nofollow.folder(self._folder) as parent:
            for name in os.listdir(parent.listed):
                if name not in kept and _SEGMENT_FILE.fullmatch(name):
                    with suppress(OSError):
                        parent.unlink(name)

    def _write(self, arrays: dict[str, np.ndarray], first: int, end: int) -> Reference:
        content = dump_tensors({n: np.asarray(a, order="C") for n, a in arrays.items()})
        digest = hashlib.sha256(content).hexdigest()
        name = f"rows-{first:012d}-{end:012d}-{digest[:8]}.safetensors"
        with nofollow.folder(self._folder.parent, 0) as run, suppress(FileExistsError):
            run.mkdir(self._folder.name)  # but not the run's folder again, if that was deleted
        nofollow.replace(self._folder / name, content, 2)
        return {"file": name, "first": first, "end": end, "sha256": digest, "bytes": len(content)}


@dataclass
class SavedRows:
    """The rows that a checkpoint refers to, checked as they are read.

    Attributes:
        references: to the folder's segments, oldest first.
        stored: the first and one past the last needed row.

    Raises:
        ValueError: the references do not cover the rows.
    """

    folder: Path
    references: list[Reference]
    stored: tuple[int, int]
    _open: tuple[str, dict[str, np.ndarray]] = ("", {})  # the last read segment

    def __post_init__(self) -> None:
        at, end = self.stored
        if not 0 <= at <= end:
            raise ValueError(f"it cannot hold the replay rows {at} to {end}")
        for ref in self.references:
            if type(ref["first"]) is not int or type(ref["end"]) is not int:
                raise ValueError("the rows of a replay segment are no whole numbers")
            if ref["first"] <= at:
                at = max(at, ref["end"])
        if at < end:
            raise ValueError(f"the replay rows from {at} on are missing")

    def read(self, first: int, end: int) -> dict[str, np.ndarray]:
        """The rows ``first .. end - 1``."""
        pieces: list[dict[str, np.ndarray]] = []
        while first < end:
            ref = next(ref for ref in self.references if ref["first"] <= first < ref["end"])
            arrays = self._segment(ref)
            stop = min(end, ref["end"])
            pieces.append(_slice(arrays, first - ref["first"], stop - ref["first"]))
            first = stop
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}

    def _segment(self, reference: Reference) -> dict[str, np.ndarray]:
        name = str(reference["file"])
        if not _NAME.fullmatch(name):
            raise CheckpointError(f"a replay segment is called {name[:80]!r}.")
        if self._open[0] == name:
            return self._open[1]
        path = self.folder / name
        try:
            content = nofollow.read(path, 2)
            if hashlib.sha256(content).hexdigest() != reference["sha256"]:
                raise DamagedError(f"{path} is not what was saved.")
            arrays = load_tensors(content)
        except OSError as error:
            raise DamagedError(f"{path} cannot be read: {error.strerror}.") from error
        except safetensors.SafetensorError as error:
            raise DamagedError(f"{path} is corrupt: {error}.") from error
        rows = reference["end"] - reference["first"]
        if any(len(array) != rows for part, array in arrays.items() if not is_final(part)):
            raise CheckpointError(f"{path} does not hold the {rows:,} rows that it should.")
        self._open = (name, arrays)
        return arrays


def _slice(arrays: dict[str, np.ndarray], first: int, end: int) -> dict[str, np.ndarray]:
    """Some rows of a segment; `finals` has an entry for each truncated step, in order."""
    rows = {name: array[first:end] for name, array in arrays.items() if not is_final(name)}
    before = int(arrays["truncated"][:first].sum())
    after = before + int(rows["truncated"].sum())
    rows |= {name: array[before:after] for name, array in arrays.items() if is_final(name)}
    return rows
