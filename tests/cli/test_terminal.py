"""A run outlives its terminal: readers that go away, full disks, hang-ups, ASCII, Ctrl-C, crashes.

Each situation is a real process with a real pipe or a real terminal, and ends as said.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from rich.console import Console

from flatout.cli.watch import picture
from flatout.engine.workers import pool
from flatout.envs.deadline import DeadlineExceeded, deadline
from flatout.errors import FlatoutError, Interrupt
from flatout.output import Output, plain, printable
from flatout.run.interrupts import Interrupts
from flatout.storage import checkpoint
from flatout.storage.run_folder import RunFolder
from flatout.storage.segments import SegmentStore
from flatout.types import Snapshot
from tests import tiny
from tests.conftest import Result
from tests.fault_envs import STEERING, stuck
from tests.kills import finish, wait_for

ROOT = Path(__file__).parents[2]
VARIABLES = {
    **os.environ,
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    "PYTHONPATH": str(ROOT),
}
STEPS = 256
TRAIN = (
    f"flatout train ppo {' '.join(tiny.flags('ppo'))} --steps {STEPS} --no-tensorboard "
    "--run-dir run"
)
STEERED = f"{TRAIN.replace('CartPole-v1', 'tests.fault_envs:steering')} --env-kwargs raises=false"
ASCII = "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0"


def shell(line: str, folder: Path) -> Result:
    """Run a line of bash; a pipe's exit code is that of what failed in it."""
    ran = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], cwd=folder, env=VARIABLES, capture_output=True,
        text=True, timeout=120, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return Result(ran.returncode, ran.stdout, ran.stderr)


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run" / "summary.json").read_text())


# --- Lines of a shell -----------------------------------------------------------------------------


class Situation(NamedTuple):
    """A line of bash, its exit code, and what holds afterwards."""

    line: str
    code: int
    holds: Callable[[Result, Path], bool]


def silent(result: Result, folder: Path) -> bool:
    return not result.err


def told(result: Result, folder: Path) -> bool:
    return "No space left on device" in result.message


def plainly(result: Result, folder: Path) -> bool:
    return result.out.isascii() and "--env ID" in result.out and not result.err


def whole(result: Result, folder: Path) -> bool:
    return summary(folder)["steps"] == STEPS and (folder / "run" / "params.safetensors").exists()


def whole_and_told(why: str) -> Callable[[Result, Path], bool]:
    def holds(result: Result, folder: Path) -> bool:
        notes = " ".join(summary(folder)["notes"])
        return whole(result, folder) and why in result.message and why in notes

    return holds


QUICK = {
    "devices, read by head": Situation("flatout devices | head -1", 0, silent),
    "devices, to a full disk": Situation("flatout devices > /dev/full", 1, told),
    "help, to a full disk": Situation("flatout train ppo --help > /dev/full", 1, told),
    "devices, all closed": Situation("flatout devices <&- >&- 2>&-", 0, silent),
    "a mistake, errors to a full disk": Situation("flatout trian 2> /dev/full", 2, silent),
    "help, C locale": Situation(f"{ASCII} flatout train ppo --help", 0, plainly),
    "train, read by head": Situation(f"{TRAIN} | head -1", 0, whole_and_told("Broken pipe")),
}
LONG = {
    "train, C locale": Situation(
        f"{ASCII} {TRAIN}", 0, lambda r, f: whole(r, f) and r.out.isascii() and "###" in r.out
    ),
    "train, to a full disk": Situation(f"{TRAIN} > /dev/full", 0, whole_and_told("No space")),
    "train --json, to a full disk": Situation(
        f"{TRAIN} --json --quiet > /dev/full", 0, lambda r, f: whole(r, f) and told(r, f)
    ),
    "train, errors to a full disk": Situation(f"{TRAIN} 2> /dev/full", 0, whole),
    "train, all closed": Situation(f"{TRAIN} <&- >&- 2>&-", 0, whole),
    "train, ASCII by PYTHONIOENCODING": Situation(
        f"PYTHONIOENCODING=ascii {TRAIN}", 0, lambda r, f: whole(r, f) and r.out.isascii()
    ),
    "an environment that prints, nobody reads": Situation(
        f"({STEERED} --env-kwargs prints=true) 2>&1 | head -1", 0, whole
    ),
    "workers that print, nobody reads": Situation(
        f"({STEERED} --env-kwargs prints=true "
        "--placement 'sampler=processes workers=2x1') 2>&1 | head -1", 0, whole,
    ),
    "explain, read by head": Situation("flatout explain run 2> /dev/null | head -1", 0, whole),
    "eval, to a full disk": Situation("flatout eval run --episodes 1 > /dev/full", 1, told),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)]
)
def test_a_line_of_a_shell_ends_as_said(
    name: str, tmp_path: Path, flatout: Callable[..., Result]
) -> None:
    situation = (QUICK | LONG)[name]
    if "train" not in situation.line and " run" in situation.line:  # a finished run
        words = ("--steps", STEPS, "--quiet", "--run-dir", tmp_path / "run")
        assert flatout("train", "ppo", *tiny.flags("ppo"), *words).code == 0
    result = shell(situation.line, tmp_path)
    assert result.code == situation.code, result
    assert "Traceback" not in result.err
    assert situation.holds(result, tmp_path), result


# --- Terminals ------------------------------------------------------------------------------------


class Terminal:
    """A process in a session and a terminal of its own; `seen` is what the terminal was sent."""

    def __init__(
        self,
        *argv: str,
        folder: Path,
        columns: int = 80,
        ignores_hang_ups: bool = False,
        **more: str,
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

        # By programs and not by a function of ours: forking where JAX has threads may hang.
        session = ["setsid", "--ctty"]
        session += ["bash", "-c", 'trap "" HUP; exec "$0" "$@"'] if ignores_hang_ups else []
        self.process = subprocess.Popen(
            [*session, sys.executable, "-m", "flatout", *tiny.latest(argv)], cwd=folder,
            env=VARIABLES | more,
            stdin=slave, stdout=slave, stderr=slave,
        )  # fmt: skip
        os.close(slave)
        self.seen, self._there = b"", True
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while self._there:
            try:
                if select.select([self._master], [], [], 0.05)[0]:
                    self.seen += os.read(self._master, 65536)
            except OSError:  # the process has ended
                return

    def types(self, text: bytes) -> None:
        os.write(self._master, text)

    def hang_up(self) -> None:
        self._there = False
        self._reader.join()
        os.close(self._master)

    def ends(self, seconds: float = 60.0) -> int:
        code = self.process.wait(seconds)
        self._reader.join()
        if self._there:
            os.close(self._master)
        return code


WATCHED = (
    "train", "ppo", *tiny.flags("ppo"), "--no-tensorboard", "--checkpoint-every", "0",
    "--log-every", "1", "--run-dir", "run", "--placement", "cpu",  # else long runs are planned
)  # fmt: skip
SLEEPY = tuple(
    tiny.latest((*WATCHED, "--env", "tests.fault_envs:sleepy", "--env-kwargs", "seconds=0.005"))
)


def learns(folder: Path) -> bool:
    rows = folder / "run" / "metrics.jsonl"
    return rows.exists() and rows.stat().st_size > 0


def saved_step(folder: Path) -> int:
    step, _ = checkpoint.load(checkpoint.latest(folder / "run"))
    return step


def test_a_terminal_that_hangs_up_ends_a_run_that_saves(tmp_path: Path) -> None:
    """The kernel sends SIGHUP, a shell another one; nothing can be written any more."""
    terminal = Terminal(*SLEEPY, "--steps", "64000", folder=tmp_path)
    wait_for(lambda: learns(tmp_path))
    terminal.hang_up()
    terminal.process.send_signal(signal.SIGHUP)
    assert terminal.ends() == 129
    assert saved_step(tmp_path) > 0
    assert saved_step(tmp_path) % tiny.ITERATION == 0
    assert summary(tmp_path)["ended"] == "signal"


@pytest.mark.slow
@pytest.mark.fault
def test_a_repeated_sigterm_loses_nothing(tmp_path: Path) -> None:
    """`timeout` sends one to its child and one to the child's group; job managers do alike."""
    terminal = Terminal(*SLEEPY, "--steps", "64000", folder=tmp_path)
    wait_for(lambda: learns(tmp_path))
    for _ in range(5):
        terminal.process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
    assert terminal.ends() == 143
    assert saved_step(tmp_path) > 0
    assert summary(tmp_path)["ended"] == "signal"


@pytest.mark.slow
def test_a_run_that_ignores_hang_ups_outlives_its_terminal(tmp_path: Path) -> None:
    """As under nohup, but with a terminal to write to, which then is gone."""
    terminal = Terminal(*SLEEPY, "--steps", "320", folder=tmp_path, ignores_hang_ups=True)
    wait_for(lambda: learns(tmp_path))
    terminal.hang_up()
    assert terminal.ends() == 0
    found = summary(tmp_path)
    assert found["steps"] == 320
    assert "standard output cannot be written" in " ".join(found["notes"])


@pytest.mark.slow
def test_nohup_is_respected(tmp_path: Path) -> None:
    line = " ".join(("flatout", *SLEEPY, "--steps", "320"))
    process = subprocess.Popen(
        ["bash", "-c", f"exec nohup {line}"], cwd=tmp_path, env=VARIABLES, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for(lambda: learns(tmp_path))
    process.send_signal(signal.SIGHUP)
    result = finish(process)
    assert result.code == 0, result.err
    assert summary(tmp_path)["steps"] == 320


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "more"),
    [(80, {}), (80, {"PYTHONIOENCODING": "ascii"}), (80, {"TERM": "dumb"}), (1, {}),
     (80, {"NO_COLOR": "1"})],
)  # fmt: skip
def test_any_terminal_shows_a_run_and_gets_its_cursor_back(
    columns: int, more: dict[str, str], tmp_path: Path
) -> None:
    argv = TRAIN.split()[1:]
    terminal = Terminal(*argv, folder=tmp_path, columns=columns, **more)
    assert terminal.ends() == 0
    assert summary(tmp_path)["steps"] == STEPS
    assert b"Traceback" not in terminal.seen
    assert columns == 1 or b"ACHIEVED" in terminal.seen
    assert terminal.seen.rfind(b"\x1b[?25h") >= terminal.seen.rfind(b"\x1b[?25l")
    assert "PYTHONIOENCODING" not in more or terminal.seen.isascii()


@pytest.mark.slow
def test_a_second_ctrl_c_ends_a_hanging_environment_and_shows_the_cursor(tmp_path: Path) -> None:
    faulty = (
        "--env",
        "tests.fault_envs:faulty",
        "--env-kwargs",
        "fault=swallow",
        "--env-kwargs",
        "at=400",
        "--env-kwargs",
        f"folder={tmp_path}",
    )
    terminal = Terminal(*WATCHED, "--steps", "64000", *faulty, folder=tmp_path)
    wait_for(lambda: (tmp_path / "done").exists())
    for _ in range(2):
        time.sleep(1.0)
        assert terminal.process.poll() is None
        terminal.types(b"\x03")
    assert terminal.ends() == 130
    assert b"Traceback" not in terminal.seen
    assert terminal.seen.rfind(b"\x1b[?25h") > terminal.seen.rfind(b"\x1b[?25l")


BEGUN = """
import sys, flatout.__main__ as program

def told(event, arguments, said=[]):
    if event == "import" and arguments[0].startswith("flatout.") and not said:
        said.append(print(flush=True))

sys.argv = ["flatout", *sys.argv[1:]]
sys.addaudithook(told)
sys.exit(program.main())
"""
"""Says when Flatout imports the first of its modules: Python's own start-up is not ours."""


@pytest.mark.parametrize("delays", [(0.0, 0.02, 0.05, 0.1), (0.15, 0.2, 0.3, 0.5)])
def test_ctrl_c_at_the_very_beginning_is_one_line(
    delays: tuple[float, ...], tmp_path: Path
) -> None:
    """Amid imports an exception may be swallowed, or end in a segmentation fault."""
    processes: list[tuple[float, subprocess.Popen[str]]] = []
    for delay in delays:
        argv = ["train", "ppo", "--env", "CartPole-v1", "--run-dir", f"run-{delay}"]
        process = subprocess.Popen(
            [sys.executable, "-c", BEGUN, *argv], cwd=tmp_path, env=VARIABLES, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        processes.append((delay, process))
    for delay, process in processes:
        result = finish(process)
        assert result.code == 130, (delay, result)
        assert result.err.count("\n") == 1, (delay, result)
        assert result.message.startswith("interrupted"), (delay, result)


# --- What people and programs say -----------------------------------------------------------------


def test_an_environments_text_cannot_steer_the_terminal(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    flags = (*tiny.flags("ppo", env="tests.fault_envs:steering"), "--quiet")
    result = flatout("train", "ppo", *flags, "--run-dir", tmp_path / "run")
    assert result.code == 1
    assert "raised RuntimeError in step: a " in result.message
    assert printable(result.err) == result.err


@pytest.mark.parametrize("words", [STEERING, "\x1b]8;;x\x07\x1b[2J\x1b\\ link"])
def test_frames_of_text_have_colours_and_nothing_else(words: str) -> None:
    console = Console(width=60, height=20, force_terminal=True, color_system="truecolor")
    frame = f"\x1b[31mred\x1b[0m {words}\nboard"
    with console.capture() as said:
        console.print(picture(frame, console))
    shown = re.sub(r"\x1b\[[\d;]*m", "", said.get())
    assert "\x1b[31mred" in said.get()
    assert "board" in shown
    assert printable(shown) == shown


def test_characters_that_an_encoding_lacks_have_plain_ones() -> None:
    assert plain("· ± █ größe", "utf-8") == "· ± █ größe"
    assert plain("a · 3 ± 1 ██▁│", "ascii") == "a - 3 +- 1 ##_|"
    assert plain("größe ∀", "latin-1") == "größe ?"
    assert plain("\udcff", "utf-8") == "?"  # of a file's name that is no UTF-8


def test_a_stream_that_somebody_closed_is_lost_and_nothing_else(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file:
        stream = Output(file, "standard output")
        stream.write("before")
        file.close()
        stream.write("after")
        stream.settle()
    assert stream.lost
    assert (tmp_path / "file").read_text() == "before"


def test_a_terminal_of_few_characters_shows_plain_ones() -> None:
    raw = io.BytesIO()
    output = Output(io.TextIOWrapper(raw, encoding="ascii"), "standard output")
    print("a · 3 ± 1", file=output)
    output.flush()
    assert raw.getvalue() == b"a - 3 +- 1\n"
    assert not output.lost


def test_no_file_gets_the_number_of_a_stream_that_the_caller_closed(tmp_path: Path) -> None:
    code = (
        "import os\nfrom flatout.output import guarded\nos.close(0)\nos.close(1)\n"
        f"with guarded():\n    number = os.open({str(tmp_path)!r}, os.O_RDONLY)\n"
        "assert number > 2, number\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr


# --- Signals --------------------------------------------------------------------------------------


def test_ignored_signals_stay_ignored_and_hang_ups_do_not_add_up() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGTERM)
            interrupts.check()
            with pytest.raises(Interrupt), interrupts.discardable():
                signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGHUP)  # the shell's, after the kernel's: ends nothing
            assert interrupts.signum == signal.SIGHUP
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


# --- Environments that do not let go --------------------------------------------------------------


@pytest.mark.parametrize("how", ["sleep", "spin", "wait"])
def test_what_blocks_is_interrupted_and_leaves_no_timer(how: str) -> None:
    before = signal.getsignal(signal.SIGALRM)
    env = stuck(how)
    for _ in range(2):
        env.step(0)
    with pytest.raises(DeadlineExceeded), deadline(0.05):
        env.close()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


STUCK = (*tiny.flags("ppo", env="tests.fault_envs:stuck"), "--steps", "64", "--quiet")


def test_environments_that_do_not_close_are_named(
    flatout: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("deadline", "make", "host"):
        monkeypatch.setattr(f"flatout.envs.{module}.CLOSE_S", 0.2)
    result = flatout("train", "ppo", *STUCK, "--run-dir", tmp_path / "run")
    assert result.code == 0, result.err
    assert "environment 0 (tests.fault_envs:stuck) did not close within 0.2 s" in result.err
    assert "environment 1 (tests.fault_envs:stuck) did not close within 0.2 s" in result.err
    assert summary(tmp_path)["steps"] == 64


def test_workers_that_do_not_close_are_killed_and_named(
    flatout: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.envs.make.CLOSE_S", 0.2)
    monkeypatch.setattr(pool, "CLOSE_S", 0.2)
    where = ("--placement", "sampler=processes workers=2x1", "--run-dir", tmp_path / "run")
    result = flatout("train", "ppo", *STUCK, *where)
    assert result.code == 0, result.err
    assert "worker 0 (environments 0 to 0) did not close" in result.err
    assert "worker 1 (environments 1 to 1) did not close" in result.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code", "word"),
    [("mutex", 1, "fault_envs.py"), ("thread", 0, "simulator")],
)
def test_native_code_and_threads_that_stay_are_bounded(
    how: str, code: int, word: str, tmp_path: Path
) -> None:
    """Neither minds a signal; the run's work is saved by then."""
    result = shell(
        f"flatout train ppo {' '.join(STUCK)} --env-kwargs how={how} --run-dir run", tmp_path
    )
    assert result.code == code, result
    assert word in result.err
    assert summary(tmp_path)["steps"] == 64


FAULTY = ("train", "ppo", "--env", "tests.fault_envs:faulty", "--envs", "1", "--n-steps", "16",
          "--batch-size", "16", "--n-epochs", "2", "--checkpoint-every", "16", "--quiet",
          "--no-tensorboard")  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "code", "word", "reason"),
    [
        ("segfault", -signal.SIGSEGV, "Fatal Python error: Segmentation fault",
         "died of: Segmentation fault in <lambda> ("),
        pytest.param("exit", 3, "", "os._exit", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_what_a_process_died_of_is_said_at_the_next_resume(
    fault: str, code: int, word: str, reason: str, tmp_path: Path,
    flatout: Callable[..., Result],
) -> None:  # fmt: skip
    """In the terminal where it dies by `faulthandler`, and in the summary of the next process."""
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "flatout", *FAULTY, "--steps", "64", "--env-kwargs",
         f"fault={fault}", "--env-kwargs", "at=40", "--env-kwargs", f"folder={tmp_path}",
         "--run-dir", str(run)],
        cwd=ROOT, env=VARIABLES, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    result = finish(process)
    assert result.code == code, result
    assert word in result.err
    assert flatout("train", "--resume", run, "--quiet").code == 0
    notes = " ".join(summary(tmp_path)["notes"])
    assert reason in notes
    assert not (run / "fault.log").exists()
    assert not (run / ".running").exists()


# --- A folder that goes away ----------------------------------------------------------------------


def test_a_folder_deleted_while_its_run_goes_on_ends_the_run(tmp_path: Path) -> None:
    words = tiny.latest((*SLEEPY, "--steps", "64000", "--checkpoint-every", "128", "--quiet"))
    argv = [sys.executable, "-m", "flatout", *words]
    process = subprocess.Popen(
        argv, cwd=tmp_path, env=VARIABLES, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for(lambda: learns(tmp_path))
    while (tmp_path / "run").exists():  # a save may come in between
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
    result = finish(process)
    assert result.code == 1
    assert "run was deleted or moved" in result.message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("gone", [".lock", "metrics.jsonl", "config.json", "."])
def test_a_folder_that_is_not_whole_is_not_saved_into(gone: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    try:
        for name in ("config.json", "metrics.jsonl"):
            (folder.path / name).write_text("{}")
        folder.check()
        if gone == ".":  # another run's folder of the same name
            shutil.move(folder.path, tmp_path / "moved")
            shutil.copytree(tmp_path / "moved", folder.path)
        else:
            (folder.path / gone).unlink()
        with pytest.raises(FlatoutError, match="deleted or moved"):
            folder.check()
    finally:
        folder.close()


def test_a_folder_that_is_deleted_within_a_save_is_named_and_not_made_again(
    tmp_path: Path,
) -> None:
    folder = RunFolder(tmp_path / "run")
    for name in ("config.json", "metrics.jsonl"):
        (folder.path / name).write_text("{}")

    def save() -> None:
        with folder.checked():
            shutil.rmtree(folder.path)
            checkpoint.save(folder.checkpoints, 1, Snapshot({}, {}, None), 1)

    with pytest.raises(FlatoutError, match="run was deleted or moved"):
        save()
    with pytest.raises(FlatoutError, match="run was deleted or moved"):
        folder.write_config(tiny.train_config(["ppo", *tiny.flags("ppo")])[0], "cpu")
    folder.close()
    assert not folder.path.exists()


def test_replay_that_was_deleted_is_written_again(tmp_path: Path) -> None:
    class Rows:
        stored = (0, 8)

        def read(self, first: int, end: int) -> dict[str, np.ndarray]:
            rows = np.arange(first, end)
            return {"rows": rows, "truncated": np.zeros(len(rows), bool), "finals": rows[:0]}

    rows, store = Rows(), SegmentStore(tmp_path / "replay")
    before = store.save(rows)  # type: ignore[arg-type]
    shutil.rmtree(tmp_path / "replay")
    rows.stored = (0, 12)
    after = store.save(rows)  # type: ignore[arg-type]
    assert before[-1]["end"] == 8
    assert after[-1]["end"] == 12
    assert after[0]["first"] == 0
    assert all((tmp_path / "replay" / one["file"]).is_file() for one in after)


class Unwritable(io.StringIO):
    """A stream that raises when it is written to."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def write(self, text: str) -> int:
        raise self._error


@pytest.mark.parametrize(
    ("error", "unread"),
    [(BrokenPipeError(errno.EPIPE, "Broken pipe"), True), (OSError(errno.ENOSPC, "full"), False)],
)
def test_a_reader_that_goes_away_is_no_failure_and_a_full_disk_is(
    error: OSError, unread: bool
) -> None:
    output = Output(Unwritable(error), "standard output")
    assert output.write("a line") == 6
    output.flush()
    assert output.lost == error.strerror
    assert output.unread is unread, "only what nobody reads keeps the usual exit code"
