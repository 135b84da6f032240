"""Which signals wait for a safe moment, which count as one, and which end the process at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from flatout.errors import Interrupt
from flatout.run import interrupts
from flatout.run.interrupts import Interrupts


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The exit codes with which the process would have ended at once."""
    codes: list[int] = []

    class Leaving(Exception):  # noqa: N818 - it stands for the end of the process
        pass

    def leave(code: int) -> Any:
        codes.append(code)
        raise Leaving

    monkeypatch.setattr(interrupts.os, "_exit", leave)
    return codes


def arrive(signals: Interrupts, *numbers: int) -> None:
    for number in numbers:
        try:
            signals._handle(number, None)
        except Exception as end:
            if type(end).__name__ != "Leaving":
                raise


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let a number of seconds pass; until then the clock stands still."""
    now = [100.0]
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: now[0])
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


def test_a_second_ctrl_c_ends_the_process_at_once(
    exits: list[int], passes: Callable[[float], None]
) -> None:
    left: list[int] = []
    signals = Interrupts(lambda: left.append(1))
    arrive(signals, signal.SIGINT, signal.SIGINT)  # a launcher forwards the terminal's
    assert (exits, left) == ([], [])
    passes(0.5)
    arrive(signals, signal.SIGINT)
    assert (exits, left) == ([130], [1])


def test_a_second_ctrl_c_in_a_notebook_leaves_the_process_alive(
    exits: list[int], passes: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.ps1", ">>> ", raising=False)
    signals = Interrupts()
    arrive(signals, signal.SIGINT, signal.SIGINT)
    passes(0.5)
    for _ in range(2):  # also while the run is being closed
        with pytest.raises(KeyboardInterrupt):
            signals._handle(signal.SIGINT, None)
    assert exits == []


def test_signals_of_a_job_manager_count_as_one(
    exits: list[int], passes: Callable[[float], None]
) -> None:
    signals = Interrupts()
    arrive(signals, signal.SIGTERM, signal.SIGTERM)
    for seconds in (0.05, 4.0):
        passes(seconds)
        arrive(signals, signal.SIGTERM)
    assert exits == []
    passes(6.0)
    arrive(signals, signal.SIGTERM)
    assert exits == [143]


def test_several_hang_ups_count_as_one(exits: list[int]) -> None:
    signals = Interrupts()
    arrive(signals, signal.SIGHUP, signal.SIGHUP, signal.SIGHUP)
    arrive(signals, signal.SIGINT)  # nobody has asked for the end before
    assert exits == []
    with pytest.raises(Interrupt), signals.discardable():
        pass


def test_a_signal_is_raised_only_where_work_may_be_thrown_away(exits: list[int]) -> None:
    signals = Interrupts()
    with signals.discardable(), pytest.raises(Interrupt):
        signals._handle(signal.SIGTERM, None)
    with pytest.raises(Interrupt), signals.discardable():
        pass
    assert exits == []
