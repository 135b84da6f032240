"""Tests of the architecture: packages import only from lower ones, without circular imports."""

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
    "config", "child", "documents", "output_file", "hashes", "installing", "spans", "errors",
    "output", "evaluation", "actions", "types", "casts", "tree",
)  # fmt: skip
"""Packages and modules from the highest to the lowest; each may import only from later ones."""

ANYWHERE = {"flatout", "__init__"}
"""The package itself, which every module may import and which imports names on first use."""

MODULES = {
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SRC.rglob("*.py")
    if path.parent.name != "inject"  # runs inside other people's programs
}


def imported(path: Path) -> Iterator[str]:
    """Yield Flatout's modules that a file imports, also inside functions and only for types."""

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


def test_every_package_has_a_place_in_the_order() -> None:
    assert {name.partition(".")[0] for name in MODULES} - ANYWHERE == set(ORDER)


def test_no_module_imports_from_a_higher_package() -> None:
    rank = {room: number for number, room in enumerate(ORDER)}
    up = [
        f"{module} imports {other}"
        for module, path in MODULES.items()
        for other in imported(path)
        if {module, other}.isdisjoint(ANYWHERE)
        and rank[module.partition(".")[0]] > rank[other.partition(".")[0]]
    ]
    assert up == []


def test_no_imports_are_circular() -> None:
    graph = {
        module: {other for other in imported(path) if other != module}
        for module, path in MODULES.items()
    }
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


DESIGN = Path(__file__).parent.parent / "docs" / "design.md"

GROWTH = 1.03
"""Maximum lines of a folder, as a multiple of the lines that docs/design.md states."""


def test_no_folder_outgrows_the_lines_that_the_design_states() -> None:
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
    """Return the number of lines of Python in a folder (``run/``) or a module."""
    if room.endswith("/"):
        files = list((SRC / room).rglob("*.py"))
    else:
        files = [SRC / f"{room}.py"] + ([SRC / "__init__.py"] if room == "__main__" else [])
    return sum(len(file.read_text().splitlines()) for file in files)
