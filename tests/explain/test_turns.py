"""Programs that run in turn: what holds one, what its clock says, what becomes of it at the end."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from flatout.explain.against.outcome import lines, outcome
from flatout.explain.against.rates import Course, Run, turn_ratios
from flatout.explain.against.turns import Program, evidence_of, take_turns
from tests.explain.test_program import script, start
from tests.kills import finish, wait_for

FACTS = {"cores": 2, "gpus": [], "cpu": "c"}

STAMPS = """
import os, sys, time

if os.fork() == 0 and len(sys.argv) > 2:
    os.setsid()  # a worker that no signal to its parent's group reaches
with open(sys.argv[1], "a", buffering=1) as file:
    while True:
        end = time.process_time() + 0.002
        while time.process_time() < end:
            pass
        print(time.monotonic(), file=file)
"""


def stamps(file: Path) -> list[float]:
    return [float(line) for line in file.read_text().splitlines()[:-1]]


@pytest.mark.parametrize("session", [(), ("own",)])
def test_all_processes_of_a_program_are_held_while_another_one_runs(
    tmp_path: Path, session: Sequence[str]
) -> None:
    path, files = script(tmp_path, STAMPS), [tmp_path / "a", tmp_path / "b"]
    with contextlib.ExitStack() as running:
        programs = []
        for file in files:
            command = [sys.executable, str(path), str(file), *session]
            programs.append(running.enter_context(Program(command, "a:b", FACTS)))
            programs[-1].imports()
        began = time.monotonic()
        take_turns(programs, 3.0, 0.0)  # the time is over: one turn of each
        take_turns(programs, 3.0, 0.0)
        ended = time.monotonic()
        edges = [program.edges for program in programs]
    merged = sorted((t, at) for at, file in enumerate(files) for t in stamps(file))
    sides = [at for t, at in merged if began < t < ended]
    # A signal takes a while to arrive on a loaded machine. Free programs change sides all the time.
    assert len(sides) > 40
    assert sum(a != b for a, b in pairwise(sides)) < len(sides) / 10
    assert all(len(each) == 3 for each in edges)


WORKS = """
import time

def work():
    end = time.process_time() + 0.002
    while time.process_time() < end:
        pass

while True:
    work()
"""


def test_the_time_in_which_a_program_is_held_is_in_no_figure(tmp_path: Path) -> None:
    command = [sys.executable, str(script(tmp_path, WORKS))]
    began = time.monotonic()
    with Program(command, "__main__:work", FACTS) as program:
        program.imports()
        for _ in range(2):
            program.turn(0.5)
            time.sleep(1.5)  # it is held
        ran = program.ran
        _, evidence = evidence_of(program)
    (process,) = evidence.processes
    spent = evidence.ended - evidence.began
    assert ran < spent < time.monotonic() - began - 2.9
    assert sum(sample.seconds for sample in evidence.monitor) < spent
    times = [sample.t for sample in process.samples]
    assert max(after - before for before, after in pairwise(times)) < 1.5
    assert all(sample.dt < 1.5 for sample in process.samples)
    assert sum(sample.dt for sample in process.samples) > 0.5 * ran


def test_a_program_that_cannot_run_beside_the_other_one_runs_after_it(tmp_path: Path) -> None:
    text = "import os, time\nfile = os.open('one', os.O_CREAT | os.O_EXCL)\ntry:\n"
    text += "    time.sleep({})\nfinally:\n    os.unlink('one')\n"
    commands = []
    for seconds in (1.2, 0.4):
        path = script(tmp_path, f"import os\nos.chdir({str(tmp_path)!r})\n" + text.format(seconds),
                      f"{seconds}.py")  # fmt: skip
        commands.append([sys.executable, str(path)])
    command = shlex.join(commands[1])
    flags = ("--seconds", 3, "--minutes", 0.2)
    process = start("--against", command, *flags, "--", *commands[0])
    found = finish(process, 60)
    assert "speed of the whole program, 1 pair" in found.err, found.err


def test_no_program_is_left_held_if_explain_is_killed(tmp_path: Path) -> None:
    path = script(tmp_path, "import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\n"
                  "while True:\n    time.sleep(0.01)\n")  # fmt: skip
    files = [tmp_path / "a", tmp_path / "b"]
    first, second = ([sys.executable, str(path), str(file)] for file in files)
    process = start("--against", shlex.join(second), "--count", "a:b", "--", *first)
    wait_for(lambda: all(file.exists() and file.read_text() for file in files))
    pids = [int(file.read_text()) for file in files]
    wait_for(lambda: any(psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in pids))
    process.kill()
    process.communicate()
    try:
        held = [pid for pid in pids if _is_stopped(pid)]
        wait_for(lambda: not any(map(_is_stopped, held)))
    finally:
        for pid in pids:  # the one that ran goes on, as other programs whose parent is gone
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


# --- Ratios of speeds in turns ----------------------------------------------------------------


def course(speeds: Sequence[float], first: int = 0, cycle_s: float = 0.0) -> Course:
    done = [0.0]
    for speed in speeds:
        done.append(done[-1] + speed)
    return Course(first, [float(at) for at in range(len(done))], done, cycle_s)


def test_each_turn_of_both_steady_states_gives_a_ratio() -> None:
    # The machine is half as fast in two turns, and the second program was steady two turns later.
    first = course([8, 8, 8, 4, 4, 8, 8])
    second = course([24, 12, 12, 24, 24], first=2)
    assert turn_ratios(first, second) == [3.0] * 5
    assert turn_ratios(second, first) == [1 / 3] * 5


def test_turns_of_one_cycle_are_taken_together() -> None:
    first, second = course([6.0] * 12, cycle_s=2.5), course([0, 12, 24] * 4)
    assert turn_ratios(first, second) == [2.0] * 4


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (course([1.0]), course([1.0])),  # a single turn
        (course([]), course([1.0] * 5)),
        (course([1.0] * 5), course([1.0] * 5, first=5)),  # no turn in common
        (course([1.0] * 5), course([0.0] * 5)),
        (course([1.0] * 5, cycle_s=3.0), course([1.0] * 5)),  # one cycle
        (Course(0, [], [], 0.0), course([1.0] * 5)),
    ],
)
def test_turns_that_do_not_tell_the_speeds_give_no_ratio(first: Course, second: Course) -> None:
    assert turn_ratios(first, second) == []


def test_a_round_without_known_turns_counts_as_one_pair() -> None:
    run = Run({"calls": 1.0})
    found = outcome([run, run], [run, run], [{"calls": [1.1, 0.9, 1.0]}, {}])
    assert found.pairs == 4
    assert "4 pairs" in lines(found, "b")[0]
    assert math.isclose(found.gain, 1.0)
