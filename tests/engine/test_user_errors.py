"""Invalid returns and errors of environments end a run with the same sentence in any process."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from flatout import EnvironmentFailure
from flatout.engine.workers import pool
from flatout.errors import InvalidReturn
from tests.bad_envs import NaNs, Raises, WrongShape, WrongValue
from tests.engine.test_workers import LOCAL, PROCESSES, collected, sampler

REWARD = functools.partial(WrongValue, what="reward=text")
NAN = functools.partial(NaNs, what="reward")  # found when the trajectory ends
RETURNED = [
    (PROCESSES, REWARD),
    *(
        pytest.param(placement, source, marks=pytest.mark.slow)
        for placement, source in [
            (PROCESSES, NAN), (PROCESSES, WrongShape), (LOCAL, REWARD), (LOCAL, NAN),
            (PROCESSES, functools.partial(WrongShape, at=0)),
        ]
    ),
]  # fmt: skip


def failure(source: Any, placement: str, notes: list[str], inline: bool = False) -> Exception:
    with (
        pytest.raises(EnvironmentFailure) as raised,
        sampler(placement, source, inline=inline, notes=notes) as made,
    ):
        collected(made, 3)
    assert "\n" not in str(raised.value)
    assert "Traceback" not in str(raised.value)
    return raised.value


@pytest.mark.parametrize(("placement", "source"), RETURNED)
def test_an_invalid_return_ends_the_run_at_once(placement: str, source: Any) -> None:
    notes = list[str]()
    found = failure(source, placement, notes)
    assert isinstance(found, InvalidReturn)
    assert str(found) == str(failure(source, placement, notes, inline=True))
    assert not notes, "a worker was restarted"


@pytest.mark.fault
def test_an_error_becomes_a_sentence_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_RESTARTS", 1)
    notes = list[str]()
    found = failure(Raises, PROCESSES, notes)
    inline = failure(Raises, PROCESSES, notes, inline=True)
    raised = str(inline).partition(" raised ")[2].rstrip(".")
    assert "bad_envs.py:" in raised
    assert raised in str(found)
    assert str(found).endswith(", after 1 restarts.")
    assert len(notes) == 1
    assert "Traceback" in str(found.__cause__), "error.log would not say where it was raised"
