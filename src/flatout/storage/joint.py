"""One checkpoint for several members of a population: every array with an axis of members."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from flatout.errors import CheckpointError, FlatoutError, writing
from flatout.storage import checkpoint
from flatout.storage.segments import SegmentStore, is_final
from flatout.types import RowSource, Snapshot
from flatout_explain.files import locks, nofollow

TRUNCATED = "truncated"
"""Of rows of experience: the flags for each of which there is a final observation, in order."""


@dataclass(frozen=True)
class Beside:
    """The same rows of several members: arrays ``[rows, M, ...]``."""

    parts: Sequence[RowSource]

    @property
    def stored(self) -> tuple[int, int]:
        ranges = {part.stored for part in self.parts}
        if len(ranges) > 1:
            raise CheckpointError("members at different steps have no checkpoint in common.")
        return ranges.pop()

    def read(self, first: int, end: int) -> dict[str, np.ndarray]:
        """The rows ``first .. end - 1``."""
        each = [part.read(first, end) for part in self.parts]
        rows = {n: np.stack([part[n] for part in each], 1) for n in each[0] if not is_final(n)}
        member, row, env = np.nonzero(rows[TRUNCATED].swapaxes(0, 1))  # as they lie one after other
        order = np.lexsort((env, member, row))
        finals = [n for n in each[0] if is_final(n)]
        return rows | {n: np.concatenate([part[n] for part in each])[order] for n in finals}


@dataclass(frozen=True)
class OneOf:
    """One member's rows of those of all."""

    whole: RowSource
    member: int

    @property
    def stored(self) -> tuple[int, int]:
        return self.whole.stored

    def read(self, first: int, end: int) -> dict[str, np.ndarray]:
        """The rows ``first .. end - 1``."""
        rows = self.whole.read(first, end)
        mine = np.nonzero(rows[TRUNCATED])[1] == self.member
        return {n: a[mine] if is_final(n) else a[:, self.member] for n, a in rows.items()}


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read.

    Attributes:
        path, step: of it.
        members: whose state it holds, in the order of the axis.
        slots: each member's place in the program, and `size`, how many there are.
        failed: members that had failed, and why.
        separate: the names of arrays of one member, ``NAME#PLACE``. An entry of observations may
            have such a name, too.
    """

    path: Path
    step: int
    members: list[str]
    slots: dict[str, int]
    size: int
    failed: dict[str, str]
    separate: frozenset[str]
    snapshot: Snapshot

    def of(self, member: str) -> Snapshot:
        """One member's state."""
        place, count = self.members.index(member), len(self.members)
        arrays: dict[str, np.ndarray] = {}
        for name, array in self.snapshot.arrays.items():
            plain, _, number = name.rpartition("#")
            if name not in self.separate:
                if len(array) != count:
                    raise CheckpointError(f"the array {name} is not of {count} members.")
                arrays[name] = array[place]
            elif number == str(place):
                arrays[plain] = array
        rows = self.snapshot.rows
        return Snapshot(
            arrays, self.snapshot.data["each"][place], None if rows is None else OneOf(rows, place)
        )


class Joint:
    """The checkpoints of a group of members.

    Args:
        folder: the group's own.
        keep: how many of the newest stay.

    Raises:
        FlatoutError: the folder cannot be written, or is in use.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder / "checkpoints", keep
        self._store = SegmentStore(folder / checkpoint.REPLAY)
        with writing(folder), ExitStack() as undo:
            with nofollow.folder(folder, 2, make=True):
                pass
            try:
                self._lock = undo.enter_context(closing(locks.Lock(folder / locks.LOCK, 3)))
            except locks.InUseError as error:
                raise FlatoutError(f"{folder} is in use by another process{error.owner}.") from None
            checkpoint.recover(self._folder)
            undo.pop_all()

    def close(self) -> None:
        """Let another process use the folder."""
        with suppress(OSError):  # user code may have closed its descriptor
            self._lock.close()

    @cached_property
    def newest(self) -> Saved | None:
        """The newest checkpoint when it was first asked for; later saves go on from it.

        Raises:
            CheckpointError: it is damaged.
        """
        found = checkpoint.checkpoints(self._folder)
        if not found:
            return None
        path = found[-1]
        step, snapshot = checkpoint.load(path)
        with checkpoint.reading(path):
            data = snapshot.data
            members = [str(name) for name in data["members"]]
            slots = {str(name): int(slot) for name, slot in data["slots"].items()}
            size = int(data["size"])
            places = sorted(slots.values())
            if not members or len(data["each"]) != len(members) or len({*places}) < len(places) or (
                places and not 0 <= places[0] <= places[-1] < size
            ):  # fmt: skip
                raise CheckpointError("its members are impossible.")
            failed = {str(name): str(why) for name, why in data["failed"].items()}
            hashed = [name for name in snapshot.arrays if "#" in name]  # of earlier versions
            separate = frozenset(map(str, data.get("separate", hashed)))
        self._store.resume(checkpoint.references(path))
        checkpoint.remove_unused(self._folder, self._store)
        return Saved(path, step, members, slots, size, failed, separate, snapshot)

    def save(
        self, step: int, each: dict[str, Snapshot], slots: dict[str, int], size: int,
        failed: dict[str, str],
    ) -> None:  # fmt: skip
        """Write the members' state; arguments as of `Saved`.

        Raises:
            FlatoutError: the folder cannot be written; earlier checkpoints are intact.
        """
        snapshots = list(each.values())
        arrays, separate = dict[str, np.ndarray](), dict[str, np.ndarray]()
        for name in dict.fromkeys(name for snapshot in snapshots for name in snapshot.arrays):
            mine = [snapshot.arrays.get(name) for snapshot in snapshots]
            there = {p: np.asarray(array) for p, array in enumerate(mine) if array is not None}
            if len({(array.shape, array.dtype) for array in there.values()}) == 1 and (
                len(there) == len(mine)
            ):  # fmt: skip
                arrays[name] = np.stack(list(there.values()))
            else:
                separate |= {f"{name}#{place}": array for place, array in there.items()}
        sources = [snapshot.rows for snapshot in snapshots if snapshot.rows is not None]
        data = {
            "members": list(each), "each": [snapshot.data for snapshot in snapshots],
            "slots": slots, "size": size, "failed": failed, "separate": list(separate),
        }  # fmt: skip
        rows = Beside(sources) if sources else None
        checkpoint.save(
            self._folder, step, Snapshot(arrays | separate, data, rows), self._keep, self._store
        )  # fmt: skip
