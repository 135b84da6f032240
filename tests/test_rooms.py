"""The architecture: folders import only from those below them, and no import runs in a circle."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import flatout

SRC = Path(flatout.__file__).parent

ORDER = (
    "__main__", "cli", "api", "fleet", "run", "supervised", "explain", "planning", "schedules",
    "samplers", "learner", "buffers", "algorithms", "networks", "envs", "hardware", "storage",
    "config", "child", "documents", "output_file", "hashes", "installing", "errors", "output",
    "evaluation", "spans", "types",
)  # fmt: skip
"""From the command down to what everything may import."""

ANYWHERE = {"flatout", "__init__"}
"""The package itself: its version, and names that it loads on first use."""

MODULES = {
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SRC.rglob("*.py")
    if path.parent.name != "inject"  # runs by itself in other people's programs
}


def imported(path: Path) -> Iterator[str]:
    """Flatout's modules that a file imports anywhere, also those only for its types."""

    def walk(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ImportFrom) and (child.module or "").startswith("flatout"):
                package = (child.module or "").removeprefix("flatout").removeprefix(".")
                for alias in child.names:
                    full = f"{package}.{alias.name}".removeprefix(".")
                    yield full if full in MODULES else package or "flatout"
            elif isinstance(child, ast.Import):
                for alias in child.names:
                    if alias.name.startswith("flatout."):
                        yield alias.name.removeprefix("flatout.")
            yield from walk(child)

    yield from walk(ast.parse(path.read_text()))


def test_every_room_has_its_place_in_the_order() -> None:
    assert {name.partition(".")[0] for name in MODULES} - ANYWHERE == set(ORDER)


def test_no_import_runs_up() -> None:
    rank = {room: number for number, room in enumerate(ORDER)}
    up = [
        f"{module} imports {other}"
        for module, path in MODULES.items()
        for other in imported(path)
        if {module, other}.isdisjoint(ANYWHERE)
        and rank[module.partition(".")[0]] > rank[other.partition(".")[0]]
    ]
    assert up == []


def test_no_import_runs_in_a_circle() -> None:
    graph = {
        module: {other for other in imported(path) if other != module}
        for module, path in MODULES.items()
    }
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


DESIGN = Path(__file__).parent.parent / "docs" / "design.md"

GROWTH = 1.03
"""A folder may have this many times the lines that docs/design.md states."""


def test_a_folder_grows_by_a_decision_that_is_written_down() -> None:
    rows = re.findall(r"^\| (`.+?) \| ([\d,]+) \|", DESIGN.read_text(), re.MULTILINE)
    stated = {name: int(lines.replace(",", "")) for names, lines in rows
              for name in [" ".join(re.findall(r"`([^`]+)`", names))]}  # fmt: skip
    assert {part.strip("/") for names in stated for part in names.split()} == set(ORDER)
    grown = {
        names: f"{found:,} lines; docs/design.md states {stated[names]:,}"
        for names in stated
        if (found := sum(map(lines_of, names.split()))) > GROWTH * stated[names]
    }
    assert grown == {}


def lines_of(room: str) -> int:
    """The lines of Python of a folder (``run/``) or of a module."""
    if room.endswith("/"):
        files = list((SRC / room).rglob("*.py"))
    else:
        files = [SRC / f"{room}.py"] + ([SRC / "__init__.py"] if room == "__main__" else [])
    return sum(len(file.read_text().splitlines()) for file in files)
