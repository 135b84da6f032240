"""The file of ``flatout bench placement``: each row is written when it is finished, so that the
same command continues after a stop."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from flatout.errors import UsageError, writing
from flatout.fleet.placement_table import HERE_NOT, PLACEMENTS, Cell, Row
from flatout.storage import nofollow

COLUMNS: tuple[str, ...] = (
    "hidden", "mode", "placement", "seconds", "seconds_to_goal", "cpu", "gpu", "winner", "planned",
    "share", "machine",
)  # fmt: skip
MOST_BYTES = 1 << 20


class PlacementFile:
    """A table in a file, one line for each cell.

    Args:
        path: that the user names; it may be a pipe or a device, from which nothing is read.
        share: of each mode's episodes that are played.
        machine: where.
    """

    def __init__(self, path: Path, share: float, machine: str) -> None:
        self._path, self._settings = path, (f"{share:g}", machine)
        self._begun = False

    def read(self, wanted: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Row]:
        """The finished rows, by network and mode. What was written of an unfinished one is removed.

        Args:
            wanted: the networks and modes of this table.

        Raises:
            UsageError: the file is no such table, or was made with other settings.
            FlatoutError: it cannot be written.
        """
        if not self._path.exists():
            with writing(self._path):  # before minutes of measuring
                self._path.touch()
        if not self._path.is_file():
            return {}
        count = len(PLACEMENTS)
        try:
            text = nofollow.read(self._path, 0, MOST_BYTES).decode()
            whole = text[: text.rfind("\n") + 1]
            lines = list(csv.reader(io.StringIO(whole, newline=""), strict=True))
            if text and (not lines or tuple(lines[0]) != COLUMNS):
                raise ValueError("its first line is another")
            starts = range(1, len(lines) - count + 1, count)
            rows = [self._row(lines[at : at + count]) for at in starts]
        except OSError as error:
            raise UsageError(f"--csv {self._path} cannot be read: {error.strerror}.") from None
        except (ValueError, csv.Error) as error:
            raise UsageError(
                f"--csv {self._path} is no table of `flatout bench placement` ({error}); name "
                "another file."
            ) from None
        found = {(row.hidden, row.mode): row for row in rows}
        for hidden, mode in found:
            if (hidden, mode) not in wanted:
                raise UsageError(
                    f"--csv {self._path} has a row that this table does not have ({mode}, hidden "
                    f"{hidden}); name another file."
                )
        finished = lines[: 1 + count * len(rows)]
        if len(finished) < len(lines) or whole != text:
            with writing(self._path):
                nofollow.replace(self._path.resolve(), _text(finished).encode())
        self._begun = bool(lines)
        return found

    def _row(self, lines: list[list[str]]) -> Row:
        """A row of its lines.

        Raises:
            ValueError: they are none.
            UsageError: they were made with other settings.
        """
        cells: list[Cell | None] = []
        for line, placement in zip(lines, PLACEMENTS, strict=True):
            if len(line) != len(COLUMNS) or line[:3] != [*lines[0][:2], placement]:
                raise ValueError("a line is missing or damaged")
            for name, there, now in zip(COLUMNS[-2:], line[-2:], self._settings, strict=True):
                if there != now:
                    raise UsageError(
                        f"--csv {self._path} was made with {name} {there[:200]}, and this table "
                        f"has {name} {now}; name another file."
                    )
            seconds, to_goal, cpu, gpu = map(_number, line[3:7])
            here = line[3] != HERE_NOT
            cells.append(Cell(placement, seconds, to_goal, cpu, gpu) if here else None)
        hidden, mode = lines[0][:2]
        return Row(hidden, mode, tuple(cells), lines[0][8])

    def add(self, row: Row) -> None:
        """Write a finished row.

        Raises:
            FlatoutError: it cannot be written.
        """
        lines = [] if self._begun else [list(COLUMNS)]
        for placement, cell in zip(PLACEMENTS, row.cells, strict=True):
            values = [HERE_NOT] * 4
            if cell is not None:
                numbers = (cell.seconds, cell.to_goal, cell.cpu, cell.gpu)
                values = ["" if value is None else f"{value:.3f}" for value in numbers]
            lines.append([row.hidden, row.mode, placement, *values, row.winner, row.planned,
                          *self._settings])  # fmt: skip
        with writing(self._path), self._path.open("a", newline="") as out:
            out.write(_text(lines))
        self._begun = True


def _number(word: str) -> float | None:
    """The number of a cell; None where nothing was measured.

    Raises:
        ValueError: it is none, or impossible.
    """
    if word in ("", HERE_NOT):
        return None
    if not 0.0 <= (number := float(word)) < math.inf:
        raise ValueError(f"{word} is no number of seconds and no share")
    return number


def _text(lines: Sequence[Sequence[str]]) -> str:
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()
