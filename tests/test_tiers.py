"""Tests of the tests: slow tests run only if they are selected, and none skips unnoticed in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import skips
from tests.conftest import mark_further, pytest_collection_modifyitems


class Item:
    """A test with marks."""

    def __init__(self, nodeid: str, *marks: str) -> None:
        self.nodeid, self.name, self.marks = nodeid, marks[0], list(marks)

    def get_closest_marker(self, name: str) -> bool:
        return name in self.marks

    def add_marker(self, mark: Any) -> None:
        self.marks.append(mark.name)


@pytest.mark.parametrize(
    ("args", "chosen", "run"),
    [
        (["tests"], "", ["quick"]),
        (["tests/test_x.py"], "", ["quick"]),
        (["tests/test_x.py::test_y"], "", ["quick", "slow"]),
        (["tests"], "slow", ["quick", "slow"]),  # pytest itself then deselects the quick one
        (["tests"], "fault or bits", ["quick", "slow"]),
    ],
)
def test_slow_tests_run_only_if_selected(args: list[str], chosen: str, run: list[str]) -> None:
    left_out: list[Any] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=chosen), args=args, hook=hook)
    items: list[Any] = [Item("t::a", "quick"), Item("t::b", "slow")]
    pytest_collection_modifyitems(config, items)
    assert [item.name for item in items] == run
    assert len(items) + len(left_out) == 2


def test_slow_cells_of_a_quick_test_are_further_ones() -> None:
    items: Any = [Item("t::a[0]", "quick"), Item("t::a[1]", "slow"), Item("t::b[1]", "slow")]
    mark_further(items)
    assert [item.get_closest_marker("further") for item in items] == [False, True, False]


def test_skips_that_are_not_listed_are_surplus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skips, "EXPECTED", {r"no Python 3\.\d+": 2, "no browser": 1})
    listed = {"no Python 3.8 here": 1, "no Python 3.9 here": 1, "no browser here": 1}
    assert skips.surplus(Counter(listed)) == {}
    assert skips.surplus(Counter(listed | {"no browser here": 2})) == {"no browser here": 2}
    assert skips.surplus(Counter(listed | {"no Python 3.12 here": 1})) == {"no Python 3.12 here": 1}
    assert skips.surplus(Counter(listed | {"no JAX": 1})) == {"no JAX": 1}


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("ci", ["true", "false"])
def test_a_skip_that_is_not_listed_fails_in_ci_alone(ci: str, workers: str, tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        "import pytest\ndef test_a(): pytest.skip('no a')\ndef test_b(): pass\n"
    )
    (tmp_path / "test_file.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.skips", "-n", workers, "-c", os.devnull,
         "--rootdir", tmp_path, tmp_path],
        env=os.environ | {"CI": ci}, cwd=Path(__file__).parent.parent,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    named = [line for line in done.stdout.splitlines() if "tests/skips.py lists" in line]
    assert (done.returncode, len(named)) == ((1, 2) if ci == "true" else (0, 0)), done.stdout
