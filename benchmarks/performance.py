"""docs/performance.md from RESULTS.md: each section's comparison without its details.

``python benchmarks/performance.py`` writes it; with ``--check`` it exits with 1 where it is stale.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "RESULTS.md", HERE.parent / "docs" / "performance.md"

HEAD = """# Performance

Written by `python benchmarks/performance.py` from [RESULTS.md](../benchmarks/RESULTS.md), which has
each section's settings, versions and single runs. Ratios are of paired runs, all sides in turns on
one machine; above 1 the side before the slash does more per second (for `s` and `time`: the side
behind it needs less). `a (b-c)` is a median with its range.
"""

EACH_PAIR = "each pair"
RATIO = ("ratio", "min", "median", "max")


def sections(text: str) -> Iterator[tuple[str, str]]:
    """Title and body of every section."""
    parts = re.split(r"^## (.+)$", text, flags=re.M)
    return zip(parts[1::2], parts[2::2], strict=True)


def tables(body: str) -> list[list[list[str]]]:
    """A section's Markdown tables as rows of cells, rules left out."""
    blocks = re.findall(r"(?:^\|.*\n)+", body, flags=re.M)
    return [
        [
            [cell.strip() for cell in line.strip().strip("|").split("|")]
            for number, line in enumerate(block.splitlines())
            if number != 1
        ]
        for block in blocks
    ]


def shown(body: str) -> list[list[list[str]]]:
    """The tables of ratios, without the single pairs; of a section without ratios its first."""
    every = tables(body)
    ratios = [table for table in every if table[0][0] == "ratio"]
    return [
        [row[: table[0].index(EACH_PAIR)] if EACH_PAIR in table[0] else row for row in table]
        for table in ratios or every[:1]
    ]


def anchor(title: str) -> str:
    """What GitHub calls a heading's place."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def page(results: str) -> str:
    """The whole page."""
    lines = [HEAD, "## At a glance", "", "| work | ratio | median (range) |", "| --- | --- | --- |"]
    for title, body in sections(results):
        for head, first, *_ in shown(body):
            if tuple(head) == RATIO:
                name, low, middle, high = first
                lines.append(f"| [{title}](#{anchor(title)}) | {name} | {middle} ({low}-{high}) |")
                break
    lines.append("")
    for title, body in sections(results):
        found = {
            name: match[1]
            for name in ("Machine", "Date", "Command")
            if (match := re.search(rf"^- {name}: (.+?)\.?$", body, flags=re.M))
        }
        lines += [f"## {title}", "", ". ".join(found.values()) + ".", ""]
        for head, *rows in shown(body):
            lines += [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Write the page, or compare it."""
    text = page(RESULTS.read_text())
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text() != text)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
