"""How many cores really run at once: busy processes, and what is said about them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest

from flatout.errors import FlatoutError
from flatout_explain.hardware import running_cores as module
from flatout_explain.hardware.running_cores import Busy, RunningCores, doubled, running_cores

FOUR_OF_16 = RunningCores(
    16, 16, 16, (Busy(1, 1.0, 1.0), Busy(4, 4.0, 3.9), Busy(16, 3.9, 3.8)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (replace(FOUR_OF_16, throttled=11.9), "may use 16 cores, but 3.9 ran at once for 16 busy "
         "processes: a CPU quota of its control group withheld 11.9 cores"),
        (replace(FOUR_OF_16, others=12.1, names="gcc (75 % of 16 cores)"),
         "other programs used 12.1 cores (gcc (75 % of 16 cores))"),
        (replace(FOUR_OF_16, stolen=12.0), "the host of this virtual machine took 12.0 cores"),
        (replace(FOUR_OF_16, throttled=1.0, stolen=1.0), "probably the host of this container"),
        (replace(FOUR_OF_16, cores=4, levels=FOUR_OF_16.levels[:2]),
         "may use 4 cores (its CPU quota, of 16 CPUs), and as many ran at once."),
        (RunningCores(8, 8, 4, (Busy(1, 1.0, 1.0), Busy(8, 8.0, 4.8))),
         "as many ran at once. Together they did the work of 4.8 processes that have a core each: "
         "the 8 CPUs are 4 cores with several hardware threads each"),
        (RunningCores(8, 8, 8, (Busy(1, 1.0, 1.0), Busy(8, 8.0, 4.8))), "the clock is slower"),
        (RunningCores(1, 1, 1, (Busy(1, 0.5, 0.5),), throttled=0.5),
         "may use 1 core, but 0.5 ran at once for 1 busy process: a CPU quota"),
        (RunningCores(16, 16, None, (Busy(1, 1.0, 1.0), Busy(8, 7.9, 7.8))),
         "may use 16 cores; 8 of them ran at once."),
    ],
)  # fmt: skip
def test_the_count_and_the_measured_number_are_compared_in_a_sentence(
    found: RunningCores, words: str
) -> None:
    assert words in found.sentence()


def test_a_core_that_is_slightly_busy_is_no_news() -> None:
    found = RunningCores(4, 4, 4, (Busy(1, 0.99, 0.99), Busy(4, 3.7, 3.5)), others=0.3)
    assert found.sentence() == "This process may use 4 cores, and as many ran at once."


@pytest.mark.parametrize(
    ("cores", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (16, [1, 2, 4, 8, 16])]
)
def test_numbers_of_processes(cores: int, counts: list[int]) -> None:
    assert doubled(cores) == counts


@pytest.fixture
def one_cpu() -> Iterator[None]:
    """Children of this process run on one CPU."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


@pytest.mark.usefixtures("one_cpu")
@pytest.mark.parametrize("quota", [False, True])
def test_four_processes_on_one_core_are_measured_as_one(
    quota: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    withheld = iter(range(0, 100, 3))
    if quota:  # a kernel that counts three more seconds at each reading
        monkeypatch.setattr(module.Counters, "read", lambda _: {"throttled": 0.2 * next(withheld)})
    found = running_cores(4, (1, 4), seconds=0.2)
    assert [level.processes for level in found.levels] == [1, 4]
    assert 0.0 < found.at_once < 1.5
    assert 0.0 < found.work < 2.5
    assert "may use 4 cores, but" in found.sentence()
    assert ("a CPU quota of its control group withheld 3.0 cores" in found.sentence()) is quota


def test_processes_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[subprocess.Popen[bytes]]()

    class Few(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            if len(opened) == 2:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            super().__init__(*args, **options)
            opened.append(self)

    monkeypatch.setattr(module.subprocess, "Popen", Few)
    with pytest.raises(FlatoutError, match="only 2 of 4 busy processes could be started"):
        running_cores(4)
    assert all(process.poll() is not None for process in opened)


def test_a_busy_process_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPINNER", "input(); raise SystemExit(1)")
    with pytest.raises(FlatoutError, match="a busy process ended before it had answered"):
        running_cores(1)


def test_the_command_shows_a_table_and_json(
    flatout: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = replace(FOUR_OF_16, throttled=12.0)
    monkeypatch.setattr("flatout.cli.devices.running_cores", lambda: found)
    shown = flatout("devices", "--cores")
    assert shown.code == 0
    assert "--placement auto" in shown.out, "the devices stay"
    (row,) = (line.split() for line in shown.out.splitlines() if line.split()[:1] == ["16"])
    assert row == ["16", "3.90", "3.80", "24", "%"]
    assert found.sentence() in shown.out
    said = json.loads(flatout("devices", "--cores", "--json").out)["running_cores"]
    assert said["at_once"] == 4.0
    assert said["levels"][-1] == {"processes": 16, "running": 3.9, "work": 3.8}
    assert said["sentence"] == found.sentence()
    assert "running_cores" not in json.loads(flatout("devices", "--json").out)


def test_ctrl_c_ends_the_busy_processes() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "flatout", "devices", "--cores"], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    children, until = list[psutil.Process](), time.monotonic() + 120
    while not children and process.poll() is None and time.monotonic() < until:
        children = psutil.Process(process.pid).children()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, (out, err)
    assert err == "flatout: interrupted\n"
    assert children
    assert psutil.wait_procs(children, timeout=120)[1] == []
