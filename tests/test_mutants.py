"""The tool that breaks lines of the core on purpose changes exactly the line that it reports."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    """The tool as a module: `tools/` is no package."""
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tools" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


SOURCE = """
def clipped(values: list[float], high: float = 1.5) -> float:
    total = values[0] * (high - 2) if high is not None else 0
    if total > high and values:
        return high
    values.append(total)
    return total
"""


def test_every_kind_of_fault_is_made_in_one_line(mutants: ModuleType) -> None:
    faults = mutants.faults_of(Path("common.py"), SOURCE)
    assert {fault.kind for fault in faults} == {
        "comparison", "constant", "sign", "index", "dropped call",
    }  # fmt: skip
    assert {fault.changed for fault in faults} >= {
        "total = values[0] / (high - 2) if high is not None else 0",
        "total = values[0] * (high + 2) if high is not None else 0",
        "total = values[1] * (high - 2) if high is not None else 0",
        "total = values[0] * (high - 2) if high is None else 0",
        "if total >= high and values:",
        "pass",
    }
    for fault in faults:
        lines = mutants.broken(fault, SOURCE).splitlines()
        changed = [(a, b) for a, b in zip(SOURCE.splitlines(), lines, strict=True) if a != b]
        assert [(a.strip(), b.strip()) for a, b in changed] == [(fault.line, fault.changed)]


def test_a_line_that_is_gone_is_an_error(mutants: ModuleType) -> None:
    fault = mutants.Fault("common.py", "sign", "total = 1 + 1", "total = 1 - 1")
    with pytest.raises(ValueError, match="no line 'total = 1 \\+ 1' any more"):
        mutants.broken(fault, SOURCE)


def test_the_statement_around_a_line_records_that_it_is_reached(mutants: ModuleType) -> None:
    faults = dict(enumerate(mutants.faults_of(Path("common.py"), SOURCE)))
    recorded = mutants.recording(faults, SOURCE)
    tree = ast.parse(recorded)
    hits = {
        node.args[0].value for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        and node.func.attr == "hit"
    }  # fmt: skip
    assert hits == set(faults)


def test_the_same_seed_draws_the_same_faults_of_a_folder(
    mutants: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants, "PACKAGE", "src/flatout/networks")
    monkeypatch.setattr(mutants, "TOOL", "src/flatout/networks/none")
    one, other = (mutants.draw(ROOT, 20, 3, "all") for _ in range(2))
    assert one == other
    assert len({(fault.file, fault.line, fault.nth) for fault in one}) == 20
    assert one != mutants.draw(ROOT, 20, 4, "all")
    assert {fault.file.rpartition("/")[0] for fault in one} == {"src/flatout/networks"}


def test_the_groups_divide_all_folders(mutants: ModuleType) -> None:
    core, around, everything = (
        {path.relative_to(ROOT).as_posix() for path in mutants.files_of(ROOT, group)}
        for group in mutants.GROUPS
    )
    assert not core & around
    assert core | around == everything
    assert {path.split("/")[2] for path in core} == set(mutants.CORE)
    assert {"src/flatout/networks/memory.py", "src/flatout/tree.py"} < around
    assert any(path.startswith(mutants.TOOL) for path in around)
    assert not [path for path in everything if mutants.OTHER_PYTHONS in path]
