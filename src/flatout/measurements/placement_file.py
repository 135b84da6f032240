"""The file of ``flatout plan --table``: each cell is written once it is measured, so that the
same command continues after a stop."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from flatout.errors import UsageError, writing
from flatout.measurements.placement_table import HERE_NOT, PLACEMENTS, Cell, Row
from flatout_explain.files import nofollow

COLUMNS: tuple[str, ...] = (
    "hidden", "mode", "placement", "seconds", "seconds_to_goal", "cpu", "gpu", "winner", "planned",
    "share", "machine",
)  # fmt: skip
MOST_BYTES = 1 << 20


class PlacementFile:
    """A table in a file, one line for each cell.

    Args:
        path: the file that the user names. It may be a pipe or a device: then nothing is read from
            it, and only finished rows are written.
        share: the share of each mode's episodes that is played.
        machine: a description of this machine.
    """

    def __init__(self, path: Path, share: float, machine: str) -> None:
        self._path, self._settings = path, (f"{share:g}", machine)
        self._rows: dict[tuple[str, str], Row] = {}

    def read(self, wanted: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Row]:
        """Return the rows by network and mode; the last one may be unfinished.

        Args:
            wanted: the networks and modes of this table.

        Raises:
            UsageError: the file is not such a table, or was made with other settings.
            FlatoutError: the file cannot be written.
        """
        if not self._path.exists():
            with writing(self._path):  # before minutes of measuring
                self._path.touch()
        if not self._path.is_file():
            return {}
        try:
            text = nofollow.read(self._path, 0, MOST_BYTES).decode()
            whole = text[: text.rfind("\n") + 1]
            lines = list(csv.reader(io.StringIO(whole, newline=""), strict=True))
            if text and (not lines or tuple(lines[0]) != COLUMNS):
                raise ValueError("its first line is another")
            rows = [self._row(list(same)) for _, same in groupby(lines[1:], lambda line: line[:2])]
        except OSError as error:
            raise UsageError(f"--out {self._path} cannot be read: {error.strerror}.") from None
        except (ValueError, csv.Error) as error:
            raise UsageError(
                f"--out {self._path} is no table of `flatout plan --table` ({error}); name "
                "another file."
            ) from None
        found = {(row.hidden, row.mode): row for row in rows}
        for hidden, mode in found:
            if (hidden, mode) not in wanted:
                raise UsageError(
                    f"--out {self._path} has a row that this table does not have ({mode}, hidden "
                    f"{hidden}); name another file."
                )
        self._rows = dict(found)
        if found:
            self._write()  # without a line that is damaged at its end
        return found

    def _row(self, lines: list[list[str]]) -> Row:
        """Return the row that these lines hold.

        Raises:
            ValueError: the lines hold no row.
            UsageError: the row was made with other settings.
        """
        cells: list[Cell | None] = []
        for line, placement in zip(lines, PLACEMENTS, strict=False):
            if len(line) != len(COLUMNS) or line[2] != placement:
                raise ValueError("a line is missing or damaged")
            for name, there, now in zip(COLUMNS[-2:], line[-2:], self._settings, strict=True):
                if there != now:
                    raise UsageError(
                        f"--out {self._path} was made with {name} {there[:200]}, and this table "
                        f"has {name} {now}; name another file."
                    )
            seconds, to_goal, cpu, gpu = map(_number, line[3:7])
            here = line[3] != HERE_NOT
            cells.append(Cell(placement, seconds, to_goal, cpu, gpu) if here else None)
        if len(lines) > len(cells):
            raise ValueError("a line is there twice")
        hidden, mode = lines[0][:2]
        return Row(hidden, mode, tuple(cells), lines[0][8] if len(cells) == len(PLACEMENTS) else "")

    def put(self, row: Row) -> None:
        """Write the measured cells of a row, in place of those that were written before.

        Raises:
            FlatoutError: the file cannot be written.
        """
        first = not self._rows
        self._rows[row.hidden, row.mode] = row
        if self._path.is_file():
            self._write()
        elif row.finished:
            with writing(self._path), self._path.open("a", newline="") as out:
                out.write(_text([*([COLUMNS] if first else []), *self._lines(row)]))

    def _write(self) -> None:
        lines = [line for row in self._rows.values() for line in self._lines(row)]
        with writing(self._path):
            nofollow.replace(self._path.resolve(), _text([COLUMNS, *lines]).encode())

    def _lines(self, row: Row) -> Iterator[list[str]]:
        """Yield a line for each measured cell of a row."""
        winner = row.winner if row.finished else ""
        for placement, cell in zip(PLACEMENTS, row.cells, strict=False):
            values = [HERE_NOT] * 4
            if cell is not None:
                numbers = (cell.seconds, cell.to_goal, cell.cpu, cell.gpu)
                values = ["" if value is None else f"{value:.3f}" for value in numbers]
            yield [row.hidden, row.mode, placement, *values, winner, row.planned, *self._settings]


def _number(word: str) -> float | None:
    """Return the number in a cell; None if nothing was measured.

    Raises:
        ValueError: the text is not a number, or an impossible one.
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
