"""Tests of the architecture: packages import only from lower ones, without circular imports."""

from __future__ import annotations

import ast
import graphlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tools import folder_lines, ways

import flatout
import flatout_explain

SRC, TOOL = (Path(package.__file__).parent for package in (flatout, flatout_explain))

ORDER = (
    "__init__", "__main__", "cli", "sb3", "api", "sweeps", "measurements", "reports", "populations",
    "run", "supervised", "explain", "planning", "engine", "algorithms", "networks", "envs",
    "hardware", "storage", "config", "child", "packing", "purity", "randomness", "installing",
    "spans", "errors", "output", "evaluation", "actions", "frames", "types", "casts",
    "tree", "version",
)  # fmt: skip
"""Packages and modules from the highest to the lowest; each may import only from later ones, and
from `flatout_explain`. The highest is the package itself, which imports its public names on first
use."""

RULES = (
    "notebook", "difference", "against", "program", "trace", "conditions", "html", "drawing",
    "document", "ranking", "cards", "cores", "report", "diagnosis", "causes", "libraries",
)  # fmt: skip
"""Rooms of `flatout_explain` that import from each other, without circles of modules."""

TOOL_ORDER = (
    ("__init__",), ("__main__",), ("cli",), RULES, ("hardware",), ("files",), ("documents",),
    ("output_file",), ("installing", "timespans", "phases"), ("errors",), ("output",), ("version",),
)  # fmt: skip
"""The same for `flatout_explain`, which imports nothing of Flatout."""

PROGRAM = "flatout.__main__:main"
"""The whole program, which a module may start in another process as a user would."""

OFFERED = {"flatout.engine": "flatout.api.own_loop"}
"""A package that offers a public name of a higher one on first use, as `flatout` itself does, for
users only."""

MUTUAL = [{f"flatout_explain.{folder}" for folder in ("against", "program", "trace")}]
"""Folders that still import from each other; their modules do so without circles."""


def modules_of(root: Path) -> dict[str, Path]:
    """Return a package's modules by their full names."""
    found = {
        ".".join(path.relative_to(root.parent).with_suffix("").parts): path
        for path in root.rglob("*.py")
        if path.parent.name != "inject"  # runs inside other people's programs
    }
    own = f"{root.name}.__init__"
    return {n if n == own else n.removesuffix(".__init__"): path for n, path in found.items()}


OURS, TOOLS = modules_of(SRC), modules_of(TOOL)
MODULES = OURS | TOOLS
PACKAGES = (SRC.name, TOOL.name)


def imported(path: Path) -> Iterator[str]:
    """Yield the modules of both packages that a file imports, also inside functions and only for
    types.

    A text ``flatout.module:function`` as an argument of a call imports that module, too: such a
    call starts the function in another process.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
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
    """Return a module's full name, or an empty text for names of something else."""
    full = f"{name}.__init__" if name in PACKAGES else name
    return full if full in MODULES else ""


def room_of(module: str) -> str:
    """Return the folder or module of a package in which a module lies."""
    return module.split(".")[1]


def test_every_package_has_a_place_in_the_order() -> None:
    assert {room_of(name) for name in OURS} == set(ORDER)
    assert {room_of(name) for name in TOOLS} == {room for group in TOOL_ORDER for room in group}


def test_no_module_imports_from_a_higher_package() -> None:
    groups = [*((f"flatout.{room}",) for room in ORDER),
              *([f"flatout_explain.{room}" for room in group] for group in TOOL_ORDER)]  # fmt: skip
    rank = {room: number for number, group in enumerate(groups) for room in group}
    up = [
        f"{module} imports {other}"
        for module, path in MODULES.items()
        for other in imported(path)
        if OFFERED.get(module) != other
        and rank[".".join(module.split(".")[:2])] > rank[".".join(other.split(".")[:2])]
    ]
    assert up == []


def test_no_module_uses_what_a_package_offers_to_users() -> None:
    for package, offered in OFFERED.items():
        users = {m for m, path in MODULES.items() for other in imported(path)
                 if other in (package, offered)}  # fmt: skip
        assert users == {"flatout.__init__", package}


def test_the_tool_imports_nothing_of_flatout() -> None:
    files = [*TOOLS.items(), *((str(file), file) for file in TOOL.rglob("inject/*.py"))]
    wrong = [name for name, file in files for other in imported(file) if other in OURS]
    assert wrong == []


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
            if OFFERED.get(module) == other:
                continue
            for one, two in zip(folders_of(module), folders_of(other), strict=False):
                if one != two:
                    graph[one].add(two)
                    break
    tangled = [folders for folders in mutual(graph) if len(folders) > 1]
    assert tangled == MUTUAL


def folders_of(module: str) -> list[str]:
    """Return the folders in which a module lies, each with those above it."""
    root = (SRC if module in OURS else TOOL).parent
    parts = MODULES[module].relative_to(root).parts[:-1]
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


def test_only_config_compares_what_a_placement_says_with_texts() -> None:
    assert ways.questions() == []


def test_the_design_describes_every_folder() -> None:
    tool = {f"flatout_explain/{room}" for group in TOOL_ORDER for room in group}
    assert {part.strip("/") for row in folder_lines.stated() for part in row} == {*ORDER, *tool}
    assert all(folder_lines.lines_of(row) > 0 for row in folder_lines.stated())
