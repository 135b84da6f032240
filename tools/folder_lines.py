"""Prints the lines of Python in each folder next to those that docs/design.md states, and marks the
folders that have grown since: python tools/folder_lines.py. It never fails: a reviewer decides
whether a folder has become too large. With --write it sets the numbers in docs/design.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
DESIGN = ROOT / "docs" / "design.md"
ROW = re.compile(r"^\| (`.+?) \| ([\d,]+) \|", re.MULTILINE)

GROWN = 1.03
"""Ratio of a folder's lines to the stated ones from which on it is marked."""


def stated() -> dict[tuple[str, ...], int]:
    """Return the lines that docs/design.md states, by the folders and modules of a row."""
    return {
        tuple(re.findall(r"`([^`]+)`", names)): int(lines.replace(",", ""))
        for names, lines in ROW.findall(DESIGN.read_text())
    }


def lines_of(names: tuple[str, ...]) -> int:
    """Return the lines of Python in folders (``run/``) and modules."""
    found = 0
    for name in names:
        package = ROOT / "explain" / "src" if name.startswith("flatout_explain/") else (
            ROOT / "src" / "flatout"
        )  # fmt: skip
        place = package / name
        files = place.rglob("*.py") if name.endswith("/") else [place.with_suffix(".py")]
        found += sum(len(file.read_text().splitlines()) for file in files)
    return found


def write() -> None:
    """Set the numbers in docs/design.md."""

    def row(match: re.Match[str]) -> str:
        names = tuple(re.findall(r"`([^`]+)`", match[1]))
        return f"| {match[1]} | {lines_of(names):,} |"

    DESIGN.write_text(ROW.sub(row, DESIGN.read_text()))


def main() -> None:
    """Print the table."""
    for names, before in stated().items():
        now = lines_of(names)
        first = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        mark = f"  grown by {now / before - 1:.1%}" if now > GROWN * before else ""
        print(f"{first:44} {now:7,} lines; docs/design.md {before:7,}{mark}")


if __name__ == "__main__":
    write() if "--write" in sys.argv[1:] else main()
