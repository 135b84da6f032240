"""Tests of the collection of tests: slow tests run only if they are selected."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

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
