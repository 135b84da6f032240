"""Which tests run when: slow ones where they are chosen."""

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
        (["tests"], "slow", ["quick", "slow"]),  # of which pytest itself keeps the slow
        (["tests"], "fault or bits", ["quick", "slow"]),
    ],
)
def test_slow_tests_wait_until_they_are_chosen(
    args: list[str], chosen: str, run: list[str]
) -> None:
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
