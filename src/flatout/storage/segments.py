"""Replayed experience on disk: append-only segments that checkpoints refer to.

A checkpoint writes the rows that are new since the one before and refers to all others, so that
saving often is cheap however much is stored. A segment is a safetensors file of whole rows, named
after its first and one past its last row and its contents; it is written under another name,
synced and renamed, and never changed. What a checkpoint refers to it holds by SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as dump_tensors

from flatout.errors import CheckpointError, DamagedError
from flatout.storage import durable, nofollow
from flatout.types import RowSource

SMALL = 8 << 20
"""Bytes below which the newest segment is written again together with the rows that follow it:
saving very often would otherwise leave very many files."""
PIECE = 64 << 20
"""Bytes of rows at most in one segment, as far as rows are smaller."""

_NAME = re.compile(r"rows-\d{12,}-\d{12,}-[0-9a-f]{8}\.safetensors")
_OWN = re.compile(rf"{_NAME.pattern}|\.{_NAME.pattern}\.tmp")

Reference = dict[str, Any]
"""One segment: ``file``, ``first`` and ``end`` row, ``sha256``, ``bytes``."""


class SegmentStore:
    """The segments of one run.

    Args:
        folder: where they lie; made when first written to.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._newest: list[Reference] = []

    def save(self, rows: RowSource) -> list[Reference]:
        """Write the rows that are not on disk yet.

        Returns:
            References to segments that hold all rows that are needed, oldest first.

        Raises:
            OSError: the disk is full or not writable; what was written before is intact.
        """
        first, end = rows.stored
        kept = [one for one in self._newest if one["end"] > first and one["end"] <= end]
        if not all((self._folder / one["file"]).is_file() for one in kept):
            kept = []  # somebody has deleted some: all that is needed is still in memory
        begin = kept[-1]["end"] if kept else first
        if kept and kept[-1]["bytes"] < SMALL and begin < end:
            begin = max(kept.pop()["first"], first)
        written: list[Reference] = []
        try:
            while begin < end:
                stop = min(begin + self._rows_in_a_piece(rows, begin, end), end)
                written.append(self._write(rows.read(begin, stop), begin, stop))
                begin = stop
        except OSError:
            with suppress(OSError), nofollow.folder(self._folder) as parent:
                for one in written:  # nobody refers to them, and the disk is full
                    os.unlink(one["file"], dir_fd=parent)
            raise
        kept += written
        self._newest = kept
        return list(kept)

    def resume(self, references: list[Reference]) -> None:
        """Go on from what a checkpoint refers to. The newest segment is written again: an episode
        that could not be restored has changed its last row."""
        self._newest = list(references[:-1])

    def keep_only(self, references: Iterable[Reference]) -> None:
        """Remove the segments that no checkpoint refers to."""
        wanted = {one["file"] for one in references}
        with suppress(OSError), nofollow.folder(self._folder) as parent:
            for name in os.listdir(parent):
                if name not in wanted and _OWN.fullmatch(name):
                    with suppress(OSError):
                        os.unlink(name, dir_fd=parent)

    def _rows_in_a_piece(self, rows: RowSource, begin: int, end: int) -> int:
        one = rows.read(begin, begin + 1)
        size = sum(array.nbytes for name, array in one.items() if name != "finals")
        return max(PIECE // max(size, 1), 1)

    def _write(self, arrays: dict[str, np.ndarray], first: int, end: int) -> Reference:
        content = dump_tensors({n: np.asarray(a, order="C") for n, a in arrays.items()})
        digest = hashlib.sha256(content).hexdigest()
        name = f"rows-{first:012d}-{end:012d}-{digest[:8]}.safetensors"
        with nofollow.folder(self._folder, make=True):
            durable.replace(self._folder / name, content, 2)
        return {"file": name, "first": first, "end": end, "sha256": digest, "bytes": len(content)}


class SavedRows:
    """The rows that a checkpoint refers to, checked as they are read.

    Args:
        folder: of the segments.
        references: to them, oldest first.
        stored: the first and one past the last row that are needed.

    Raises:
        CheckpointError: the references do not cover those rows.
    """

    def __init__(self, folder: Path, references: list[Reference], stored: tuple[int, int]) -> None:
        self._folder = folder
        self.references = references
        self._stored = stored
        self._open: tuple[str, dict[str, np.ndarray]] | None = None
        at = stored[0]
        if not 0 <= stored[0] <= stored[1]:
            raise CheckpointError(f"it cannot hold the replay rows {stored[0]} to {stored[1]}.")
        for one in references:
            if type(one["first"]) is not int or type(one["end"]) is not int:
                raise CheckpointError("the rows of a replay segment are no whole numbers.")
            if one["first"] <= at:
                at = max(at, one["end"])
        if at < stored[1]:
            raise CheckpointError(f"the replay rows from {at} on are missing.")

    @property
    def stored(self) -> tuple[int, int]:
        """The first and one past the last row that are needed."""
        return self._stored

    def read(self, first: int, end: int) -> dict[str, np.ndarray]:
        """The rows ``first .. end - 1``."""
        parts: list[dict[str, np.ndarray]] = []
        while first < end:
            one = next(one for one in self.references if one["first"] <= first < one["end"])
            arrays = self._segment(one)
            stop = min(end, one["end"])
            parts.append(_cut(arrays, first - one["first"], stop - one["first"]))
            first = stop
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _segment(self, reference: Reference) -> dict[str, np.ndarray]:
        name = str(reference["file"])
        if self._open is not None and self._open[0] == name:
            return self._open[1]
        path = self._folder / name
        if not _NAME.fullmatch(name):
            raise CheckpointError(f"a replay segment is called {name[:80]!r}.")
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
        if any(len(array) != rows for part, array in arrays.items() if part != "finals"):
            raise CheckpointError(f"{path} does not hold the {rows:,} rows that it should.")
        self._open = (name, arrays)
        return arrays


def _cut(arrays: dict[str, np.ndarray], first: int, end: int) -> dict[str, np.ndarray]:
    """Some rows of a segment; `finals` has an entry for each truncated step, in order."""
    part = {name: array[first:end] for name, array in arrays.items() if name != "finals"}
    before = int(arrays["truncated"][:first].sum())
    part["finals"] = arrays["finals"][before : before + int(part["truncated"].sum())]
    return part
