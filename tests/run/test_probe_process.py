"""Measuring in a process of its own: its stages have a limit each, and what they found is kept."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from typing import Any

import pytest

from flatout.errors import FlatoutError
from flatout.run import probe_process
from flatout.run.probe_process import MeasuringError, Report, call

HERE = __name__


def longer_in_all(report: Report) -> str:
    """Stages that each take more than half of the limit, and a last one that hangs."""
    report("the first")
    time.sleep(1.2)
    report("the second", {"found": 1})
    time.sleep(1.2)
    report("the third")
    threading.Event().wait()
    return "never"


def failing(how: str, report: Report) -> None:
    report("the first")
    report("the second", [1, 2])
    if how == "raise":
        raise FlatoutError("the physics exploded")
    if how == "exit":
        os._exit(3)
    if how == "kill":
        print("the last line\nof native code", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "close":
        os.closerange(3, 64)
        report("the third")


def in_threads(count: int, report: Report) -> int:
    threads = [threading.Thread(target=report, args=(f"part {n}", "x" * 9999))
               for n in range(count)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count


def test_a_limit_is_for_one_stage_and_what_was_found_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe_process, "busiest_others", lambda: "gcc (97 % of 2 cores)")
    with pytest.raises(MeasuringError) as raised:
        call(f"{HERE}:longer_in_all", (), 2.0)
    assert raised.value.slow
    assert raised.value.so_far == {"found": 1}
    said, _, spent = str(raised.value).rpartition("; ")
    assert re.fullmatch(r"it was given up after \d+ s", spent)
    assert said == (
        "the third did not end within 2 s; other programs hold the cores: gcc (97 % of 2 cores)"
    )


def test_what_holds_the_cores_is_said_long_before_a_stage_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe_process, "busiest_others", lambda: "gcc (97 % of 2 cores)")
    monkeypatch.setattr(probe_process, "LOOK_S", 0.0)
    said = list[str]()
    assert call(f"{HERE}:in_threads", (2,), 60.0, announce=said.append) == 2
    assert said == [
        "measuring takes long, because other programs hold the cores: gcc (97 % of 2 cores); it is "
        "given up if starting a process has not ended in 60 s"
    ]


def test_all_stages_together_have_a_limit_where_one_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe_process, "busiest_others", lambda: "")
    with pytest.raises(MeasuringError, match=r"in all.* within 0 s .*does it hang\?") as raised:
        call(f"{HERE}:longer_in_all", (), 60.0, 0.0)
    assert raised.value.slow


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", r"exploded \(after \d+ s\)"), ("exit", r"code 3.*the second, after \d+ s"),
        ("kill", r"killed \(SIGKILL\) \(its last words: of native code\); it was the second"),
        ("close", "closed descriptors that it had not opened"),
    ],
)  # fmt: skip
def test_what_was_found_before_a_failure_is_kept(how: str, said: str) -> None:
    with pytest.raises(MeasuringError, match=said) as raised:
        call(f"{HERE}:failing", (how,), 60.0)
    assert (raised.value.slow, raised.value.so_far) == (False, [1, 2])


def test_threads_may_report() -> None:
    assert call(f"{HERE}:in_threads", (20,), 60.0) == 20


def test_what_cannot_travel_is_said_before_anything_starts() -> None:
    with pytest.raises(FlatoutError):
        call(f"{HERE}:failing", (threading.Lock(),), 60.0)


def test_an_answer_that_is_no_json_is_an_error() -> None:
    with pytest.raises(MeasuringError, match="TypeError"):
        call(f"{HERE}:no_json", (), 60.0)


def no_json(report: Report) -> Any:
    return {1, 2}
