"""Programs that run in turn: what holds one, what its clock says, what becomes of it at the end."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from flatout_explain.against import rates
from flatout_explain.against.outcome import lines, outcome
from flatout_explain.against.rates import CALLS, STEPS, UPDATES, Course, Run, turn_ratios
from flatout_explain.against.turns import Program, take_turns
from flatout_explain.program import attach
from flatout_explain.program.evidence import Evidence, build
from flatout_explain.program.timeline import timeline
from tests.conftest import Result
from tests.explain.test_program import script, start
from tests.explain.test_program_rules import Recorded, meta
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


@pytest.mark.parametrize("session", [(), pytest.param(("own",), marks=pytest.mark.slow)])
def test_all_processes_of_a_program_are_held_while_another_one_runs(
    tmp_path: Path, session: Sequence[str]
) -> None:
    path, files = script(tmp_path, STAMPS), [tmp_path / "a", tmp_path / "b"]
    with contextlib.ExitStack() as running:
        programs = []
        for file in files:
            command = [sys.executable, str(path), str(file), *session]
            programs.append(running.enter_context(Program(command, "a:b", FACTS)))
            programs[-1].wait_for_imports()
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
        program.wait_for_imports()
        for _ in range(2):
            program.turn(0.7)
            time.sleep(1.5)  # it is held
        ran = program.turns_s
        _, evidence = program.finish()
    (process,) = evidence.processes
    spent = evidence.ended - evidence.began
    assert ran < spent < time.monotonic() - began - 2.9
    assert 0.9 < sum(sample.seconds for sample in evidence.monitor) < spent
    assert evidence.monitor[-1].t <= evidence.ended
    times = [sample.t for sample in process.samples]
    assert max(after - before for before, after in pairwise(times)) < 1.5
    assert all(sample.dt < 1.5 for sample in process.samples)
    assert sum(sample.dt for sample in process.samples) > 0.5 * ran


PORT = """
import socket, time
held = socket.create_server(("127.0.0.1", {port}))
def work():
    time.sleep(0.005)
while True:
    work()
"""


def compare_with_itself(folder: Path, save: Path) -> Result:
    """Compare a program that needs a port for itself with itself."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = folder / "script.py"
    if not path.exists():  # else the port is known, and the file's digest
        script(folder, PORT.format(port=port))
    command = [sys.executable, str(path)]
    flags = ("--seconds", 1, "--minutes", 0.3, "--count", "__main__:work", "--save", save)
    return finish(start("--against", shlex.join(command), *flags, "--", *command))


def test_programs_that_need_the_same_port_run_one_after_the_other(tmp_path: Path) -> None:
    save = tmp_path / "s.json"
    found = compare_with_itself(tmp_path, save)
    assert found.code == 0, found.err
    assert "calls of __main__:work per second, 1 pair: too few" in found.err
    saved = json.loads(save.read_text())
    assert saved["ended"] - saved["began"] > 0.9  # the evidence is of the run that succeeded
    assert saved["against"]["gains"] == [{"calls": []}]


@pytest.mark.slow
def test_a_comparison_of_such_programs_goes_on_where_it_was(tmp_path: Path) -> None:
    save = tmp_path / "s.json"
    compare_with_itself(tmp_path, save)
    found = compare_with_itself(tmp_path, save)
    assert found.code == 0, found.err
    assert len(json.loads(save.read_text())["against"]["gains"]) == 2


def test_a_program_that_ends_early_does_not_prolong_the_other_one(tmp_path: Path) -> None:
    brief = [sys.executable, "-c", "import time\ntime.sleep(0.5)"]
    lasting = [sys.executable, str(script(tmp_path, WORKS))]
    with (
        Program(lasting, "__main__:work", FACTS) as first,
        Program(brief, "__main__:work", FACTS) as second,
    ):
        for program in (first, second):
            program.wait_for_imports()
        take_turns([first, second], 2.0, math.inf)
        assert second.ended
        assert first.turns_s < 3.9  # it may not collect and learn, but that is known
        before = second.clock()
        time.sleep(0.05)
        assert second.clock() == before


OUTLIVED = "import os, time\npid = os.fork()\nprint(pid, flush=True) if pid else time.sleep(60)\n"


@pytest.mark.parametrize("ours", [True, False])
def test_only_what_outlived_the_program_is_ended_with_it(tmp_path: Path, ours: bool) -> None:
    """The number of a program that ended long ago may be that of another one's group by now."""
    folder = {"FLATOUT_EXPLAIN": str(tmp_path)} if ours else {}
    child = subprocess.Popen(
        [sys.executable, "-c", OUTLIVED], process_group=0, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **folder},
    )  # fmt: skip
    assert child.stdout is not None
    with child.stdout:
        pid = int(child.stdout.readline())
    child.wait()
    program: Any = Program.__new__(Program)
    program._child, program._folder, program._held_since = child, tmp_path, None
    program._outside = {}
    try:
        program._end()
        time.sleep(0.2)
        assert (pid in psutil.pids() and not _is_zombie(pid)) is not ours
    finally:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def test_the_children_of_a_number_that_may_be_another_one_s_are_not_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(3)"])
    child.wait()
    monkeypatch.setattr(attach.psutil, "Process", None)
    assert attach.end(child) == 3


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


class Counting:
    """Stands for a `Program`: in its turns it learns, and counts once in some seconds."""

    ended = failed = False

    def __init__(self, each: float) -> None:
        self.each, self.recorded = each, Recorded(1).spend(1.0, "learn")
        self.edges = [101.0]

    @property
    def turns_s(self) -> float:
        return self.edges[-1] - self.edges[0]

    def turn(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.02)):
            self.recorded.spend(0.01, "env").spend(0.01, "learn")
        self.edges.append(100.0 + self.recorded.clock)

    def evidence(self) -> Evidence:
        spent = self.recorded.clock
        rows = [[100 + n * self.each, n, 0, 0] for n in range(int(spent / self.each) + 1)]
        row = {"k": "counts", "parent": 0, "units": [CALLS, STEPS, UPDATES], "d": rows}
        return build(meta(spent), [[*self.recorded.written(), row]])


@pytest.mark.parametrize(("each", "seconds"), [(0.5, 10.0), (2.5, 15.0), (8.0, 40.0)])
def test_programs_that_are_rarely_counted_run_until_their_speeds_have_ratios(
    each: float, seconds: float
) -> None:
    programs: Any = Counting(each), Counting(0.1)
    take_turns(programs, 10.0, math.inf)
    courses = [
        rates.course(program.evidence(), timeline(program.evidence()), program.edges, CALLS)
        for program in programs
    ]
    assert [program.turns_s for program in programs] == pytest.approx([seconds, seconds])
    assert len(turn_ratios(*courses)) >= 4


def test_an_interrupted_comparison_ends_the_program_that_is_held_too(tmp_path: Path) -> None:
    process, pids = holding(tmp_path)
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 130
    assert not any(map(psutil.pid_exists, pids))


def test_no_program_is_left_held_if_explain_is_killed(tmp_path: Path) -> None:
    process, pids = holding(tmp_path)
    process.kill()
    process.communicate()
    try:
        held = [pid for pid in pids if _is_stopped(pid)]
        wait_for(lambda: not any(map(_is_stopped, held)))
    finally:
        for pid in pids:  # the one that ran goes on, as other programs whose parent is gone
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def holding(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A comparison that holds one of its programs, and the processes of both."""
    text = "import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\n"
    path = script(folder, text + "while True:\n    time.sleep(0.01)\n")
    files = [folder / "a", folder / "b"]
    first, second = ([sys.executable, str(path), str(file)] for file in files)
    process = start("--against", shlex.join(second), "--count", "a:b", "--", *first)
    wait_for(lambda: all(file.exists() and file.read_text() for file in files))
    pids = [int(file.read_text()) for file in files]
    wait_for(lambda: any(map(_is_stopped, pids)))
    return process, pids


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


def test_a_turn_that_was_spent_on_compiling_has_no_ratio() -> None:
    first, second = course([6.0] * 6), course([6.0] * 6)
    second.times[3:] = [t - 0.8 for t in second.times[3:]]
    assert turn_ratios(first, second) == [1.0] * 5


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
