"""Tests of the collection of tests: slow tests run only if they are selected."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_collection_modifyitems


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
    class Item(SimpleNamespace):
        def get_closest_marker(self, name: str) -> bool:
            return name == self.name

    left_out: list[Any] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=chosen), args=args, hook=hook)
    items: list[Any] = [Item(name="quick"), Item(name="slow")]
    pytest_collection_modifyitems(config, items)
    assert [item.name for item in items] == run
    assert len(items) + len(left_out) == 2
