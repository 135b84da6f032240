"""Tests of the architecture: packages import only from lower ones, without circular imports."""

from __future__ import annotations

import ast
import graphlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import flatout

SRC = Path(flatout.__file__).parent

ORDER = (
    "__init__", "__main__", "cli", "api", "fleet", "run", "supervised", "explain", "planning",
    "schedules", "samplers", "learner", "buffers", "algorithms", "networks", "envs", "hardware",
    "storage", "config", "child", "documents", "output_file", "packing", "purity", "randomness",
    "installing", "spans", "errors", "output", "evaluation", "actions", "types", "casts", "tree",
    "version",
)  # fmt: skip
"""Packages and modules from the highest to the lowest; each may import only from later ones. The
highest is the package itself, which imports its public names on first use."""

PROGRAM = "flatout.__main__:main"
"""The whole program, which a module may start in another process as a user would."""

MUTUAL = [{"explain.against", "explain.program", "explain.trace"}]
"""Folders that still import from each other; their modules do so without circles."""

MODULES = {
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SRC.rglob("*.py")
    if path.parent.name != "inject"  # runs inside other people's programs
}


def imported(path: Path) -> Iterator[str]:
    """Yield Flatout's modules that a file imports, also inside functions and only for types.

    A text ``flatout.module:function`` as an argument of a call imports that module, too: such a
    call starts the function in another process.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flatout":
            for alias in node.names:
                yield module_of(f"{node.module}.{alias.name}") or module_of(node.module or "")
        elif isinstance(node, ast.Import):
            yield from (m for alias in node.names if (m := module_of(alias.name)))
        elif isinstance(node, ast.Call):
            for given in (*node.args, *(keyword.value for keyword in node.keywords)):
                text = str(given.value) if isinstance(given, ast.Constant) else ""
                if re.fullmatch(r"[\w.]+:\w+", text) and text != PROGRAM:
                    yield from filter(None, [module_of(text.partition(":")[0])])


def module_of(name: str) -> str:
    """Return a module's name within the package, or an empty text for all other names."""
    inside = "__init__" if name == "flatout" else name.removeprefix("flatout.")
    return inside if name.split(".")[0] == "flatout" and inside in MODULES else ""


def test_every_package_has_a_place_in_the_order() -> None:
    assert {name.partition(".")[0] for name in MODULES} == set(ORDER)


def test_no_module_imports_from_a_higher_package() -> None:
    rank = {room: number for number, room in enumerate(ORDER)}
    up = [
        f"{module} imports {other}"
        for module, path in MODULES.items()
        for other in imported(path)
        if rank[module.partition(".")[0]] > rank[other.partition(".")[0]]
    ]
    assert up == []


def test_no_imports_are_circular() -> None:
    graph = {
        module: {other for other in imported(path) if other != module}
        for module, path in MODULES.items()
    }
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_folders_in_one_folder_do_not_import_from_each_other() -> None:
    graph = defaultdict[str, set[str]](set)  # of the folders, each with all that it holds
    for module, path in MODULES.items():
        for other in imported(path):
            for one, two in zip(folders_of(module), folders_of(other), strict=False):
                if one != two:
                    graph[one].add(two)
                    break
    tangled = [folders for folders in mutual(graph) if len(folders) > 1]
    assert tangled == MUTUAL


def folders_of(module: str) -> list[str]:
    """Return the folders in which a module lies, each with those above it."""
    parts = MODULES[module].relative_to(SRC).parts[:-1]
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


def mutual(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of nodes that reach each other."""

    def reached(start: str) -> set[str]:
        found, new = set[str](), {start}
        while new:
            found |= new
            new = {other for node in new for other in graph.get(node, ())} - found
        return found

    reach = {node: reached(node) for node in graph}
    together = {node: {x for x in reach[node] if node in reach.get(x, ())} for node in graph}
    return [nodes for node, nodes in sorted(together.items()) if node == min(nodes)]


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
        files = [SRC / f"{room}.py"]
    return sum(len(file.read_text().splitlines()) for file in files)
