"""`flatout explain -- program`: what the program notices of it (nothing), and what is said."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from flatout_explain.hardware.cores import usable_cores
from flatout_explain.program.evidence import load
from flatout_explain.program.watch import Watch
from tests.conftest import Result
from tests.kills import finish, wait_for

BUSY = """
import time

def busy(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
"""


def script(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


EXPLAIN = """
import sys
from flatout.__main__ import main
from flatout_explain.program import attach

attach.together = float  # the cores' speed together, which takes 0.3 s of work to measure
sys.argv[0] = "flatout"
sys.exit(main())
"""


def start(*argv: object, path: Path | None = None, measured: bool = False) -> subprocess.Popen[str]:
    """Start ``flatout explain ARGV`` without a terminal.

    Args:
        path: its PYTHONPATH.
        measured: with the speed of all cores together, which has tests of its own.
    """
    environment = {**os.environ, "PYTHONPATH": str(path)} if path else None
    words = ["-m", "flatout"] if measured else ["-c", EXPLAIN]
    return subprocess.Popen(
        [sys.executable, *words, "explain", *map(str, argv)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment, start_new_session=True,
    )  # fmt: skip


def explained(*argv: object, path: Path | None = None, measured: bool = False) -> Result:
    return finish(start(*argv, path=path, measured=measured))


def own_findings(said: dict[str, Any]) -> list[dict[str, Any]]:
    """Findings about the program itself: tests share the cores with each other."""
    return [one for one in said["findings"] if one["id"] != "contended"]


# --- The verdict ------------------------------------------------------------------------------

PLANTED = """\
import sys, time
import numpy as np


class Maze:
    def __init__(self):
        self.cells = [0.5] * 50_000
        self.seen = np.zeros(4)

    def reset(self):
        self.moves = 0
        return self.seen

    def step(self, move):
        self.moves += 1
        total = 0.0
        for cell in self.cells: total += (cell * 31 + move) % 7  # SLOW
        self.seen[move] = total / 1e6
        return self.seen, 1.0, self.moves >= 50, {}


def improve(weights, observation, reward):
    error = reward - values(weights, observation)
    weights += 1e-9 * error * observation[:, None]


def values(weights, observation):
    return (observation[:, None] * weights).sum(axis=0)


maze, weights = Maze(), np.zeros((4, 2))
observation = maze.reset()
start, begin = time.monotonic(), time.process_time()
while (spent := time.process_time() - begin) < 1.2 or (
    spent < 3.0 and time.monotonic() - start > 2.0 * spent  # other programs have the cores
):
    left, right = values(weights, observation)
    observation, reward, done, _ = maze.step(int(left < right))
    improve(weights, observation, reward)
    if done:
        observation = maze.reset()
"""
"""Where other programs have the cores, the program is seen only some ten times. It would often be
seen at a call that releases Python's lock, such as a product of matrices: there it waits for the
probe's thread, which waits for a core. And a window of 20 ms sees little: what `step` returns, by
which it is known, is its first event, because `step` calls nothing."""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that explaining a program with a slow environment leaves."""
    folder = tmp_path_factory.mktemp("planted")
    program = script(folder, PLANTED, "maze.py")
    result = explained(
        "--seconds", 30, "--json", folder / "said.json", "--html", folder / "said.html",
        "--save", folder / "evidence.json", "--", sys.executable, program, measured=True,
    )  # fmt: skip
    assert result.code == 0, result.err
    (folder / "said.txt").write_text(result.err)
    return folder


def test_a_slow_environment_of_no_library_is_found_with_its_line(planted: Path) -> None:
    said = json.loads((planted / "said.json").read_text())
    first = own_findings(said)[0]
    assert first["id"] == "env-bound"
    assert first["share"] > 0.5
    line = next(n for n, text in enumerate(PLANTED.splitlines(), 1) if "# SLOW" in text)
    assert f"maze.py:{line}" in " ".join(first["evidence"])
    assert (
        "stepping and resetting environments" in (planted / "said.txt").read_text().splitlines()[0]
    )


def test_saved_evidence_gives_the_same_answer(
    planted: Path, flatout: Callable[..., Result]
) -> None:
    again = planted / "again.json"
    result = flatout("explain", planted / "evidence.json", "--json", again)
    assert result.code == 0
    assert result.err == (planted / "said.txt").read_text()
    assert again.read_text() == (planted / "said.json").read_text()
    assert "<html" in (planted / "said.html").read_text()


COLLECTS = """\
import time


class Maze:
    def reset(self):
        return [0.0]

    def step(self, move):
        time.sleep(0.01)
        return [sum(cell % 7 for cell in range(3000))], 1.0, False, {}


def improve(network):
    network.backward()


maze = Maze()
while True:
    cells, reward, done, _ = maze.step(1)
"""


def test_what_is_seen_of_less_than_a_cycle_is_no_prediction(tmp_path: Path) -> None:
    """It could learn, and has not yet: explain looks on for a while, and says that it has not."""
    program = script(tmp_path, COLLECTS)
    said = tmp_path / "said.json"
    result = explained("--seconds", 0.6, "--stop", "--json", said, "--", sys.executable, program)
    assert result.code == 143, result.err  # it was asked to end
    found = json.loads(said.read_text())
    assert found["part"] == "no learning yet"
    assert found["seconds"] > 1.5
    assert own_findings(found)[0]["id"] == "env-bound"
    assert "only a part of its work was seen (no learning yet)" in result.err.splitlines()[0]
    assert "TRY" not in result.err


# --- Passed through ---------------------------------------------------------------------------


def test_a_program_notices_nothing(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    script(own, "import os\nos.environ['STARTED'] = 'by the own sitecustomize'", "sitecustomize.py")
    script(own, "WORD = 'imported'", "helper_of_mine.py")
    program = script(
        tmp_path,
        """
        import json, os, signal, sys, threading, warnings
        import helper_of_mine
        print(json.dumps({
            "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "stdin": sys.stdin.read(),
            "helper": helper_of_mine.WORD, "started": os.environ.get("STARTED"),
            "sitecustomize": sys.modules["sitecustomize"].__file__, "flags": list(sys.flags),
            "threads": [thread.name for thread in threading.enumerate()],
            "interrupt": str(signal.getsignal(signal.SIGINT)), "filters": len(warnings.filters),
            "profile": str(sys.getprofile()), "trace": str(sys.gettrace()),
        }))
        print("to stderr", file=sys.stderr)
        sys.exit(7)
        """,
    )
    command = [sys.executable, "-W", "error", str(program), "--flag", "a b", "--", "-x", ""]
    path = {**os.environ, "PYTHONPATH": str(own)}
    plain = subprocess.run(command, input="told", capture_output=True, text=True, env=path)
    watched = subprocess.run(
        [sys.executable, "-c", EXPLAIN, "explain", "--seconds", "1", "--", *command],
        input="told", capture_output=True, text=True, env=path,
    )  # fmt: skip
    assert json.loads(watched.stdout) == json.loads(plain.stdout)
    assert json.loads(plain.stdout)["started"] == "by the own sitecustomize"
    assert plain.returncode == watched.returncode == 7
    assert watched.stderr.splitlines()[0] == plain.stderr.strip() == "to stderr"


def test_the_environment_is_the_programs_once_observing_has_ended(tmp_path: Path) -> None:
    """Also that of processes that it starts then, and these are not observed."""
    program = script(
        tmp_path,
        """
        import json, os, subprocess, sys, time
        def seen(env=None):
            code = "import json, os, sys; print(json.dumps(['_flatout_probe' in sys.modules, dict("
            code += "os.environ)]))"
            command = [sys.executable, "-c", code]
            return json.loads(subprocess.run(command, env=env, stdout=subprocess.PIPE).stdout)
        first, early = dict(os.environ), seen()
        while "FLATOUT_EXPLAIN" in os.environ and time.process_time() < 30:
            sum(range(500))
        print(json.dumps([early, seen(), seen(first)]))
        """,
    )
    path = tmp_path / "own"
    result = explained("--seconds", 1, "--", sys.executable, program, path=path)
    early, late, copied = json.loads(result.out)
    assert early[0]
    assert early[1]["PYTHONPATH"].endswith(f"{os.pathsep}{path}")
    plain = {**os.environ, "PYTHONPATH": str(path)}
    assert late == copied == [False, plain]


def test_megabytes_of_output_pass_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Unbuffered, Python itself loses the rest of a write that any signal cuts short.
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    program = script(
        tmp_path,
        """
        import sys
        for _ in range(64):
            sys.stdout.write("x" * 65535 + "\\n")
            sys.stderr.write("y" * 16383 + "\\n")
        """,
    )
    result = explained("--seconds", 1, "--", sys.executable, program)
    assert result.code == 0
    assert len(result.out) == 64 * 65536
    assert result.err.count("y" * 16383 + "\n") == 64


SIGNALLED = """
import signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
if sys.argv[1] == "handles":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: sys.exit(int(number) + 40))
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize(("handles", "code"), [("handles", None), ("not", 128)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_the_programs(
    tmp_path: Path, number: signal.Signals, handles: str, code: int | None
) -> None:
    program = script(tmp_path, SIGNALLED)
    process = start("--seconds", 30, "--", sys.executable, program, handles)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    result = finish(process)
    assert result.code == (number + 40 if code is None else number + code)
    assert "VERDICT" in result.err


def test_a_terminals_ctrl_c_is_not_passed_on_whatever_standard_input_is() -> None:
    """The program gets it from the terminal: a second one would end what it does at the first."""
    code = "from flatout_explain.program.attach import _shares_terminal as f; print(f())"
    master, slave = pty.openpty()
    redirected = ["bash", "-c", 'exec "$0" "$@" < /dev/null', sys.executable, "-c", code]
    for before, stdin, said in (
        (["setsid", "--ctty"], slave, b"True"), (["setsid"], subprocess.DEVNULL, b"False"),
    ):  # fmt: skip
        done = subprocess.run(
            [*before, *redirected], stdin=stdin, stdout=subprocess.PIPE, check=True
        )
        assert done.stdout.strip() == said
    os.close(slave)
    os.close(master)


def test_programs_that_use_signals_are_left_alone(tmp_path: Path) -> None:
    """An event loop's descriptor gets none of ours, nor does a handler that is taken later."""
    program = script(
        tmp_path,
        BUSY
        + """
import signal, socket
reader, writer = socket.socketpair()
reader.setblocking(False)
writer.setblocking(False)
signal.set_wakeup_fd(writer.fileno())
busy(0.6)
print(signal.set_wakeup_fd(-1) == writer.fileno())
try:
    print(reader.recv(10_000))
except BlockingIOError:
    print("nothing")
""",
    )
    taking = script(
        tmp_path,
        BUSY
        + """
import signal
calls = []
signal.signal(signal.SIGURG, lambda number, frame: calls.append(number))
busy(0.8)
print(calls)
""",
        "taking.py",
    )
    save = tmp_path / "evidence.json"
    first = start("--seconds", 9, "--save", save, "--", sys.executable, program)
    second = start("--seconds", 9, "--", sys.executable, taking)
    result = finish(first)
    assert result.out == "True\nnothing\n"
    assert finish(second).out == "[]\n"
    (process,) = load(save).processes  # by a thread, as well as that goes
    assert sum(sample.dt for sample in process.samples) > 0.1
    assert "sampled by a second thread (its event loop is notified of every signal)" in result.err


# --- Children ---------------------------------------------------------------------------------


def test_children_are_seen_however_they_were_started(tmp_path: Path) -> None:
    script(tmp_path, BUSY, "work.py")
    program = script(
        tmp_path,
        """
        import multiprocessing, os, subprocess, sys
        from work import busy

        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            spawned = context.Process(target=busy, args=(0.3,))
            spawned.start()
            code = "import work; work.busy(0.3)"
            begun = subprocess.Popen([sys.executable, "-W", "error", "-c", code])
            forked = os.fork()
            if forked == 0:
                busy(2.0)  # what is seen is written every half second, on a busy machine later
                os._exit(3)
            busy(0.2)
            print(os.waitpid(forked, 0)[1] >> 8, begun.wait(), spawned.join(), spawned.exitcode)
            print(spawned.pid, begun.pid, forked, os.getpid())
        """,
    )
    save = tmp_path / "evidence.json"
    result = explained(
        "--seconds", 20, "--save", save, "--", sys.executable, "-W", "error", program,
        path=tmp_path,
    )  # fmt: skip
    codes, pids = result.out.splitlines()
    assert codes == "3 0 None 0"
    assert "Warning" not in result.err
    evidence = load(save)
    sampled = {one.pid for one in evidence.processes if one.samples}
    assert {int(pid) for pid in pids.split()} <= sampled
    assert not any(one.failure for one in evidence.processes)


@pytest.mark.slow
def test_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
        import os, signal, subprocess, sys, time
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
        child = subprocess.Popen([sys.executable, "-c", code])
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            grandchild = subprocess.Popen(["sleep", "60"])
            print(os.getpid(), grandchild.pid, flush=True)
            time.sleep(60)
        print(os.getpid(), child.pid, flush=True)
        time.sleep(60)
        """,
    )
    result = explained("--seconds", 1, "--stop", "--", sys.executable, program)
    assert result.code == 143
    pids = [int(pid) for pid in result.out.split()]
    assert len(pids) == 4

    def alive(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    wait_for(lambda: not any(map(alive, pids)))


# --- Programs with which little can be done ---------------------------------------------------


def test_a_program_that_fails_says_so_itself(tmp_path: Path) -> None:
    raising = script(tmp_path, "import time\ntime.sleep(0.3)\nraise LookupError('of its own')")
    runs = {
        "missing": start("--seconds", 1, "--", sys.executable, tmp_path / "nothing.py"),
        "raising": start("--seconds", 1, "--", sys.executable, raising),
        "opening": start("--seconds", 1, "--", sys.executable, "-c", "open('weights.pt')"),
        "importing": start("--seconds", 1, "--", sys.executable, "-c", "import torchy"),
        "at once": start("--seconds", 1, "--", sys.executable, "-c", "pass"),
        "no Python": start("--seconds", 1, "--", "sh", "-c", "echo from the shell; exit 9"),
    }
    done = {name: finish(process) for name, process in runs.items()}
    assert {name: result.code for name, result in done.items()} == {
        "missing": 2, "raising": 1, "opening": 1, "importing": 1, "at once": 0, "no Python": 9,
    }  # fmt: skip
    for name, result in done.items():
        assert "_flatout" not in result.err
        failing = ("raising", "opening", "importing")
        assert result.err.count("Traceback") == (name in failing)
        assert "VERDICT" in result.err
    first = {
        name: next(line for line in result.err.splitlines() if line.startswith(("ENDED", "VERD")))
        for name, result in done.items()
    }
    for name, words in {
        "missing": rf"exit code 2 after \S+ m?s: there is no file {tmp_path}/nothing.py",
        "raising": r"exit code 1 after \S+ m?s: LookupError: of its own",
        "opening": r"exit code 1 after \S+ m?s: FileNotFoundError: .*: 'weights.pt'",
        "importing": r"exit code 1 after \S+ m?s: ModuleNotFoundError: No module named 'torchy'",
        "at once": r"exit code 0 after \S+ m?s",
        "no Python": r"exit code 9 after \S+ m?s",
    }.items():
        assert re.fullmatch(rf"ENDED    the program ended with {words}", first[name]), first[name]
        assert "run it longer" not in done[name].err
        assert "--seconds" not in done[name].err
    assert "Let the program do more work" in done["at once"].err
    assert done["no Python"].out == "from the shell\n"
    assert "No Python process of sh could be observed" in done["no Python"].err


@pytest.mark.slow
def test_a_program_that_deletes_the_probes_folder_keeps_its_exit_code(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        BUSY
        + """
import os, shutil, sys
busy(0.5)
shutil.rmtree(os.environ["FLATOUT_EXPLAIN"])
busy(1.5)
sys.exit(7)
""",
    )
    done = explained("--seconds", "1", "--", sys.executable, program)
    assert done.code == 7
    assert "Traceback" not in done.err
    said = " ".join((done.out + done.err).split())
    assert "The program deleted" in said


@pytest.mark.parametrize(
    ("line", "said"), [('{"k": "process"}', "no report can be made"), ("5", "VERDICT")]
)
def test_a_recording_that_is_damaged_ends_neither_the_program_nor_its_exit_code(
    line: str, said: str, tmp_path: Path
) -> None:
    program = script(
        tmp_path,
        BUSY
        + f"LINE = {line!r}\n"
        + """
import os, sys
with open(os.path.join(os.environ["FLATOUT_EXPLAIN"], "1-1.jsonl"), "w") as file:
    file.write(LINE)
os.mkdir(os.path.join(os.environ["FLATOUT_EXPLAIN"], "2-2.jsonl"))
busy(1.5)
sys.exit(7)
""",
    )
    done = explained("--seconds", "0.5", "--", sys.executable, program)
    assert done.code == 7, done.err
    assert "Traceback" not in done.err
    assert said in done.err


def test_flags_that_keep_the_probe_out_are_named() -> None:
    begun = {
        flag: start("--seconds", 1, "--", sys.executable, "-u", flag, "-c", "print('ran')")
        for flag in ("-I", "-E", "-S")
    }
    for flag, process in begun.items():
        result = finish(process)
        assert (result.code, result.out) == (0, "ran\n")
        assert f"Python was started with {flag}, which keeps it from loading" in result.err


def test_a_report_that_cannot_be_written_does_not_harm_the_program(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    begun = [
        start("--seconds", 1, flag, "/dev/full", "--", "sh", "-c", "exit 4")
        for flag in ("--json", "--html", "--save")
    ]
    for process in begun:
        result = finish(process)
        assert result.code == 4
        assert "No space left on device" in result.message


# --- Bad requests -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((), "one thing to explain"),
        (("--",), "nothing follows --"),
        ((".", "--", "true"), "one thing to explain"),
        (("--pid", "1", "--", "true"), "one thing to explain"),
        (("--seconds", "0", "--", "true"), "--seconds 0 is impossible"),
        (("--seconds", "nan", "--", "true"), "--seconds nan is impossible"),
        (("--json", "/no/such/folder/x.json", "--", "true"), "/no/such/folder does not exist"),
        (("--html", "/", "--", "true"), "--html / is a folder"),
        (
            ("--json", "x.json", "--save", "./x.json", "--", "true"),
            "--save ./x.json would replace that of --json x.json; name another file.",
        ),
        (
            ("--diff", "x.json", "y.json", "--json", "y.json"),
            "--json y.json would replace that of --diff y.json; name another file.",
        ),
        (("--try", "--", "true"), "--try is for run folders"),
        (("--stop", "--pid", "1"), "--stop is for programs"),
        (("--", "no-such-command-anywhere"), "cannot be started: No such file"),
        (("--", "/etc/passwd"), "cannot be started: Permission denied"),
    ],
)
def test_bad_requests_are_refused_in_a_sentence(
    flatout: Callable[..., Result], argv: tuple[str, ...], said: str
) -> None:
    result = flatout("explain", *argv)
    assert result.code == 2
    assert said in result.message


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "17", "{}", '{"flatout_evidence": 1}', '{"flatout_evidence": 99}',
        '{"flatout_evidence": 1, "processes": [[]]}', '{"flatout_evidence": 1, "processes": []}',
    ],
)  # fmt: skip
def test_evidence_that_is_none_is_refused_in_a_sentence(
    flatout: Callable[..., Result], tmp_path: Path, text: str
) -> None:
    file = tmp_path / "evidence.json"
    file.write_text(text)
    result = flatout("explain", file)
    assert result.code == 1
    assert str(file) in result.message


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="it needs affinities")
def test_a_launcher_may_narrow_the_program_after_its_start(tmp_path: Path) -> None:
    """As `taskset -c 0 python train.py` does, and scripts that set their own affinity."""
    one = min(os.sched_getaffinity(0))
    code = f"input()\nimport os, time\nos.sched_setaffinity(0, [{one}])\ntime.sleep(300)"
    meta: dict[str, Any] = {"machine": {}, "monitor": [], "notes": []}
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True) as child:
        watch = Watch(child, tmp_path, meta)
        assert meta["machine"]["cores"] == usable_cores()
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
        wait_for(lambda: os.sched_getaffinity(child.pid) == {one})
        limit = time.monotonic() + 60
        while meta["machine"]["cores"] > 1 and time.monotonic() < limit:
            watch.run(0.6)
        child.kill()
        watch.close()
    assert meta["machine"]["cores"] == meta["monitor"][-1]["cores"] == 1
