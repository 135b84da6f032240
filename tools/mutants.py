"""Break single lines of the package on purpose and list the faults that no quick test catches.

    python tools/mutants.py                      # draw 24 faults; which ones do the tests catch?
    python tools/mutants.py --group around       # in all other folders, and in the tool explain
    python tools/mutants.py --group all          # in both
    python tools/mutants.py --list faults.json   # the faults of that file, or save them there

Each fault changes one comparison, constant, sign or index, or drops one call. First the quick
tests run once on a copy of the checkout in which every chosen line records the test that reaches
it, also in child processes. Then each fault is put into the copy alone, and the test files that
reach its line run, those of its own folder first, until one fails or the time limit is over. A
fault that is not caught is either harmless or shows that a test is missing.

The copy uses this checkout's `.venv` and compile cache. Needs no package but pytest: mutmut runs
tests in forked children, which JAX does not survive, and cosmic-ray runs the whole suite for each
fault.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, TOOL = "src/flatout", "explain/src/flatout_explain"
CORE = ("algorithms", "engine", "storage", "planning")
GROUPS = ("core", "around", "all")
"""`--group` chooses the folders of `CORE`, everything else, or both."""
OTHER_PYTHONS = "program/inject"
"""Runs in the Pythons of other programs, where nothing can be recorded."""
COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
SIGNS = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*")
}  # fmt: skip
RECORD = """\"\"\"Records which tests reach the chosen lines.\"\"\"
import os

_seen = set()


def hit(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if test and (number, test) not in _seen:
        _seen.add((number, test))
        line = f"{number}\\t{test}\\n".encode()
        descriptor = os.open(os.environ["MUTANTS_RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line)
        os.close(descriptor)
"""


@dataclass(frozen=True)
class Fault:
    """One changed expression.

    Attributes:
        file: path below the checkout.
        kind: comparison, constant, sign, index or dropped call.
        line: the source line, stripped, before the change.
        changed: the same line after it.
        nth: which of several equal lines of the file.
    """

    file: str
    kind: str
    line: str
    changed: str
    nth: int = 0


def changes(tree: ast.Module, source: str) -> Iterator[tuple[str, ast.AST, str]]:
    """Every possible fault of a module: its kind, the expression, and the text in its place."""

    lines = [line.encode() for line in source.splitlines()]

    def with_sign(node: ast.expr, left: ast.expr, right: ast.expr, old: str, new: str) -> str:
        """The expression with another operator; brackets around its operands stay."""
        line = lines[node.lineno - 1]
        between = line[left.end_col_offset : right.col_offset].decode().replace(old, new, 1)
        before = line[node.col_offset : left.end_col_offset].decode()
        return before + between + line[right.col_offset : node.end_col_offset].decode()

    annotations = {
        id(part)
        for node in ast.walk(tree)
        for note in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if note is not None
        for part in ast.walk(note)
    }
    for node in ast.walk(tree):
        if id(node) in annotations or getattr(node, "lineno", 0) != getattr(node, "end_lineno", 0):
            continue
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            signs, right = COMPARISONS[type(node.ops[0])], node.comparators[0]
            yield "comparison", node, with_sign(node, node.left, right, *signs)
        elif isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
            yield "sign", node, with_sign(node, node.left, node.right, *SIGNS[type(node.op)])
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            if isinstance(node.slice.value, int):
                yield "index", node.slice, str(node.slice.value + 1)
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield "constant", node, repr(node.value + 1)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield "dropped call", node, "pass"


def faults_of(file: Path, source: str) -> list[Fault]:
    """The faults of one module whose expression lies on one line."""
    lines, found = source.splitlines(), []
    for kind, node, text in changes(ast.parse(source), source):
        line = lines[node.lineno - 1]
        raw = line.encode()
        changed = (raw[: node.col_offset] + text.encode() + raw[node.end_col_offset :]).decode()
        nth = sum(one.strip() == line.strip() for one in lines[: node.lineno - 1])
        found.append(Fault(str(file), kind, line.strip(), changed.strip(), nth))
    return found


def files_of(root: Path, group: str) -> list[Path]:
    """The modules of a group in which faults can be recorded."""
    found = [path for top in (PACKAGE, TOOL) for path in (root / top).rglob("*.py")]
    core = {root / PACKAGE / name for name in CORE}
    return sorted(
        path for path in found
        if group in ("all", "core" if {*path.parents} & core else "around")
        and OTHER_PYTHONS not in path.as_posix()
    )  # fmt: skip


def draw(root: Path, count: int, seed: int, group: str = "core") -> list[Fault]:
    """`count` faults, each in another line, with the kinds in equal numbers on average."""
    files = files_of(root, group)
    by_kind: dict[str, list[Fault]] = {}
    for file in files:
        for fault in faults_of(file.relative_to(root), file.read_text()):
            by_kind.setdefault(fault.kind, []).append(fault)
    rng, chosen = random.Random(seed), dict[tuple[str, str, int], Fault]()
    while len(chosen) < count:
        fault = rng.choice(by_kind[rng.choice(sorted(by_kind))])
        try:
            ast.parse(broken(fault, (root / fault.file).read_text()))
        except SyntaxError:  # within an f-string, for example
            continue
        chosen.setdefault((fault.file, fault.line, fault.nth), fault)
    return list(chosen.values())


def number_of_line(fault: Fault, source: str) -> int:
    """The line's number from 0.

    Raises:
        ValueError: the file has no such line any more.
    """
    places = [i for i, line in enumerate(source.splitlines()) if line.strip() == fault.line]
    if fault.nth >= len(places):
        raise ValueError(f"{fault.file} has no line {fault.line!r} any more")
    return places[fault.nth]


def broken(fault: Fault, source: str) -> str:
    """The module with the fault in it."""
    lines, number = source.splitlines(), number_of_line(fault, source)
    indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
    lines[number] = indent + fault.changed
    return "\n".join(lines) + "\n"


def recording(faults: dict[int, Fault], source: str) -> str:
    """The module in which the statement around each fault's line records that it is reached."""
    lines, starts = source.splitlines(), dict[int, list[int]]()
    statements = [
        (min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]), node)
        for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)
    ]  # fmt: skip
    for number, fault in faults.items():
        line = number_of_line(fault, source) + 1
        around = [
            (node.lineno, first) for first, node in statements
            if first <= line <= (node.end_lineno or 0)
            and not lines[first - 1].lstrip().startswith(("elif", "else", "except", "finally"))
            and lines[first - 1][: node.col_offset].strip() == ""
        ]  # fmt: skip
        starts.setdefault(max(around)[1], []).append(number)
    for first in sorted(starts, reverse=True):
        line = lines[first - 1]
        indent = line[: len(line) - len(line.lstrip())]
        calls = "; ".join(f"_reached.hit({n})" for n in starts[first])
        lines[first - 1 : first - 1] = [f"{indent}import flatout._reached as _reached; {calls}"]
    return "\n".join(lines) + "\n"


class Copy:
    """A copy of a checkout's tracked files, tested with the checkout's Python and compile cache."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.failing: list[str] = []
        names = subprocess.run(
            ["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True
        ).stdout.split("\0")  # fmt: skip
        for name in filter(None, names):
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        self.env = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, (folder / "src", folder / "explain" / "src"))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "JAX_COMPILATION_CACHE_DIR": str(root / ".cache" / "xla"),
            "MUTANTS_RECORD": str(folder / "reached.txt"),
        }

    def pytest(self, *arguments: str, limit: float | None = None) -> tuple[bool | None, str]:
        """Whether the tests passed, None if the time was over, and the output."""
        process = subprocess.Popen(
            [str(self.root / ".venv/bin/python"), "-m", "pytest", "-p", "no:cacheprovider",
             *arguments],
            cwd=self.folder, env=self.env, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            out, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]
        if process.returncode not in (0, 1):
            # Nothing could be collected, for example: the fault broke an import.
            return False, out
        return process.returncode == 0, out

    def reached(self, faults: list[Fault]) -> dict[int, dict[str, int]]:
        """How many tests of each file reach each fault's line."""
        sources = {fault.file: (self.folder / fault.file).read_text() for fault in faults}
        (self.folder / PACKAGE / "_reached.py").write_text(RECORD)
        for file, source in sources.items():
            here = {n: fault for n, fault in enumerate(faults) if fault.file == file}
            (self.folder / file).write_text(recording(here, source))
        _, out = self.pytest("-n", "3", "--dist", "worksteal")
        print("recording:", out.strip().splitlines()[-1], flush=True)
        self.failing = _failed(out)  # without any fault: they say nothing about one
        for file, source in sources.items():
            (self.folder / file).write_text(source)
        (self.folder / PACKAGE / "_reached.py").unlink()
        found: dict[int, dict[str, int]] = {n: {} for n in range(len(faults))}
        record = Path(self.env["MUTANTS_RECORD"])
        for line in set(record.read_text().splitlines() if record.exists() else ()):
            number, _, test = line.partition("\t")
            files = found[int(number)]
            name = test.partition("::")[0]
            files[name] = files.get(name, 0) + 1
        return found

    def caught_by(self, fault: Fault, files: dict[str, int], limit: float) -> str:
        """The first test that fails with the fault in place, or what happened instead."""
        target = self.folder / fault.file
        source = target.read_text()
        tool = fault.file.startswith(TOOL)
        own = f"tests/{'explain' if tool else fault.file.split('/')[2]}/"
        ordered = sorted(files, key=lambda file: (not file.startswith(own), -files[file]))
        if not ordered:
            return "survived: no test reaches the line"
        target.write_text(broken(fault, source))
        began = time.monotonic()
        try:
            without = [f"--deselect={test}" for test in self.failing]
            passed, out = self.pytest("-x", "-n", "2", *without, *ordered, limit=limit)
        finally:
            target.write_text(source)
        spent = f"{time.monotonic() - began:.0f} s"
        if failed := _failed(out):
            return f"caught in {spent} by {failed[0]}"
        if passed is None:
            return f"survived: not caught within {limit:.0f} s ({len(ordered)} test files reach it)"
        if passed is False:
            return f"caught in {spent}: the tests could not run"
        return f"survived: {len(ordered)} test files passed in {spent}"


def _failed(out: str) -> list[str]:
    """The ids of the tests that pytest reports as failed."""
    lines = (line for line in out.splitlines() if line.startswith(("FAILED ", "ERROR ")))
    return [line.split(" ", 1)[1].split(" - ")[0] for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to test")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--group", choices=GROUPS, default="core", help="where to draw faults")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds for each fault")
    parser.add_argument("--list", type=Path, help="read the faults from it, or save them there")
    chosen = parser.parse_args()
    root = chosen.root.resolve()
    if chosen.list is not None and chosen.list.exists():
        faults = [Fault(**one) for one in json.loads(chosen.list.read_text())]
    else:
        faults = draw(root, chosen.count, chosen.seed, chosen.group)
        if chosen.list is not None:
            chosen.list.write_text(json.dumps([asdict(one) for one in faults], indent=1) + "\n")
    survived = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(root, Path(folder))
        reached = copy.reached(faults)
        for number, fault in enumerate(faults):
            result = copy.caught_by(fault, reached[number], chosen.limit)
            survived += result.startswith("survived")
            print(
                f"{number + 1:2d} {fault.kind}, {fault.file}: {fault.line}\n"
                f"   -> {fault.changed}\n   {result}",
                flush=True,
            )
    print(f"{len(faults) - survived} of {len(faults)} faults caught")
    return 0


if __name__ == "__main__":
    sys.exit(main())
