"""The probe runs in other Pythons than Flatout's own, from 3.8 on, and those notice nothing."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from flatout_explain.program.attach import INJECT
from flatout_explain.program.evidence import process, rows_of

VERSIONS = [f"3.{minor}" for minor in range(8, 15)]

PROGRAM = """
import asyncio, os, pathlib, sys, threading, time, warnings

warnings.simplefilter("error")


class Maze:
    counted = False  # whether its calls were, for some milliseconds

    def step(self, seconds):
        end = time.process_time() + seconds
        while time.process_time() < end:
            sum(n * n for n in range(500))
            Maze.counted = Maze.counted or sys.getprofile() is not None
        return [0.0], 1.0, False, {}

    def reset(self):
        return [0.0]


def written():  # some of what was seen of this process
    files = pathlib.Path(os.environ["FLATOUT_EXPLAIN"]).glob("%d-*.jsonl" % os.getpid())
    return any('"k": "samples"' in file.read_text() for file in files)


Maze().step(0.5)
while not Maze.counted and time.process_time() < 20:  # where others have the cores it comes late
    Maze().step(0.02)
while sys.getprofile() is not None:
    Maze().step(0.02)
child = os.fork()
if child == 0:
    Maze().step(0.5)
    while not written() and time.process_time() < 20:
        Maze().step(0.1)
    os._exit(5)
code = os.waitpid(child, 0)[1] >> 8
asyncio.run(asyncio.sleep(0.1))
print(code, len(threading.enumerate()), any("inject" in path for path in sys.path), child)
"""


@cache
def interpreter(version: str) -> str:
    """A Python of this version that works: on the path, or one that pyenv has installed; skips the
    test without one."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = sorted((root / "versions").glob(f"{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, found)):
        if candidate is None:
            continue
        said = subprocess.run([candidate, "--version"], capture_output=True, text=True)
        if said.stdout.startswith(f"Python {version}."):
            return candidate
    pytest.skip(f"no Python {version} on this machine")


def observed(
    program: str, tmp_path: Path, *python: str
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run a program with the probe: how it ended, and the folder of what was seen."""
    (tmp_path / "program.py").write_text(program)
    folder = tmp_path / "seen"
    folder.mkdir()
    done = subprocess.run(
        [*(python or (sys.executable,)), str(tmp_path / "program.py")],
        env={**os.environ, "FLATOUT_EXPLAIN": str(folder), "PYTHONPATH": str(INJECT)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done, folder


SHORT = """
import sys, time

while sys.getprofile() is None and time.process_time() < 20:
    sum(n * n for n in range(500))
"""


def test_a_program_that_ends_while_its_calls_are_counted_leaves_them(tmp_path: Path) -> None:
    done, folder = observed(SHORT, tmp_path)
    assert done.stderr == ""
    (seen,) = map(process, rows_of(folder))
    *_, window = seen.windows  # on a busy machine an earlier one may end before it is noticed
    assert window.events


HOLDER = """
import time

def train(seed, rate):
    given = locals()  # as programs do that save their settings
    end = time.process_time() + 0.5
    while time.process_time() < end:
        sum(n * n for n in range(500))
    return given

given = train(7, rate=0.5)
print(given["seed"], given["rate"])
"""


@pytest.mark.parametrize(
    "version",
    [pytest.param(one, marks=() if one == "3.13" else pytest.mark.slow) for one in VERSIONS],
)
def test_the_probe_observes_this_python(tmp_path: Path, version: str) -> None:
    done, folder = observed(PROGRAM, tmp_path, interpreter(version), "-W", "error")
    assert done.stderr == ""
    code, threads, left, child = done.stdout.split()
    assert (done.returncode, code, threads, left) == (0, "5", "1", "False")
    assert not list(folder.glob("*.failed"))
    seen = {one.pid: one for one in map(process, rows_of(folder))}
    assert len(seen) == 2
    assert {"{}.{}".format(*rows[0]["python"]) for rows in rows_of(folder)} == {version}
    for one in seen.values():
        assert one.failure is None
        steps = [code for code in one.codes if code.plain == "step" and code.cls]
        assert len(steps) == 1
        assert sum(sample.dt for sample in one.samples) > 0.1
    parent = next(one for pid, one in seen.items() if pid != int(child))
    ends = [rows[0]["pid"] for rows in rows_of(folder) if any(row["k"] == "end" for row in rows)]
    assert parent.pid in ends
    (line,) = [n for n, text in enumerate(PROGRAM.splitlines(), 1) if "sum(" in text]
    lines = {at for stack in parent.stacks.values() for _, at in stack.frames}
    assert line in lines
    assert parent.windows, "no call was counted"


def test_what_a_program_got_from_locals_is_left_alone(tmp_path: Path) -> None:
    done, folder = observed(HOLDER, tmp_path)
    assert (done.stdout, done.stderr) == ("7 0.5\n", "")
    (seen,) = map(process, rows_of(folder))
    assert sum(sample.dt for sample in seen.samples) > 0.2


RAISES = """
class Full(RuntimeError):
    @property
    def args(self):
        raise SystemExit(9)

{}
"""


@pytest.mark.parametrize(
    ("raises", "error"),
    [
        ('raise Full("CUDA out of memory. " + 999 * "x")', ("__main__.Full", "CUDA out of mem")),
        ("raise ValueError(7)", ("builtins.ValueError", "")),
        ("raise SystemExit(1)", None),
        ("try: raise ValueError('caught')\nexcept ValueError: pass", None),
    ],
)
def test_the_exception_that_ends_a_program_is_recorded_and_no_code_of_its_class_runs(
    raises: str, error: tuple[str, str] | None, tmp_path: Path
) -> None:
    done, folder = observed(RAISES.format(raises), tmp_path)
    assert done.returncode == (1 if "caught" not in raises else 0)
    (seen,) = map(process, rows_of(folder))
    if error is None:
        assert seen.error is None
    else:
        assert seen.error is not None
        assert seen.error[0] == error[0]
        assert seen.error[1].startswith(error[1])
        assert len(seen.error[1]) <= 300


LETS_GO = """
import pathlib, threading, time

end = time.monotonic() + 1.0
while time.monotonic() < end:  # sleep(0) lets go of the interpreter's lock and takes it again
    time.sleep(0)
    sum(n * n for n in range(50))
for task in pathlib.Path("/proc/self/task").iterdir():
    if int(task.name) != threading.get_native_id():
        said = (task / "status").read_text()
        print(said.split("\\nvoluntary_ctxt_switches:")[1].split()[0])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's timers and /proc are Linux's")
def test_nobody_waits_for_the_lock_that_the_program_lets_go_of(tmp_path: Path) -> None:
    """Who waits for it is woken at each of those times, in vain: some 10,000 a second."""
    done, _ = observed(LETS_GO, tmp_path)
    assert done.stderr == ""
    woken = [int(line) for line in done.stdout.split()]
    assert woken
    assert max(woken) < 1000


RESETS = """
import sys, time

def work(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(n * n for n in range(500))

def afterwards():
    work(0.6)

while sys.getprofile() is None:  # the first window opens after half a second
    work(0.001)
    if time.process_time() > 20:
        sys.exit("no window was opened")
sys.setprofile(None)
afterwards()
"""


def test_a_program_that_resets_its_profile_function_is_sampled_on(tmp_path: Path) -> None:
    """The window that it puts an end to never closes by itself."""
    done, folder = observed(RESETS, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (seen,) = map(process, rows_of(folder))
    after = {
        number
        for number, stack in seen.stacks.items()
        if any(seen.codes[code].plain == "afterwards" for code, _ in stack.frames)
    }
    assert sum(sample.dt for sample in seen.samples if sample.stack in after) > 0.2  # of 0.6


SLEEPS = """
import ctypes, json, select, time

libc = ctypes.CDLL(None, use_errno=True)

def usleep():
    return libc.usleep(250_000)

def nanosleep():
    return libc.nanosleep((ctypes.c_long * 2)(0, 250_000_000), None)

def poll():
    return libc.poll(None, 0, 250)

taken, failed = {}, []
for call in (usleep, nanosleep, poll) * 2:
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        sum(n * n for n in range(500))
    began = time.monotonic()
    if call():
        failed.append((call.__name__, ctypes.get_errno()))
    taken.setdefault(call.__name__, []).append(time.monotonic() - began)
print(json.dumps([taken, failed]))
"""


def test_calls_that_sleep_in_c_take_their_time_and_are_seen(tmp_path: Path) -> None:
    """A simulator in C that paces itself: a signal would end its sleep, with EINTR."""
    done, folder = observed(SLEEPS, tmp_path)
    assert done.stderr == ""
    taken, failed = json.loads(done.stdout)
    assert failed == []
    (seen,) = map(process, rows_of(folder))
    for name, times in taken.items():
        assert min(times) > 0.249
        (code,) = [index for index, code in enumerate(seen.codes) if code.plain == name]
        inside = {at for at, stack in seen.stacks.items() if stack.frames[0][0] == code}
        assert sum(one.dt for one in seen.samples if one.stack in inside) > 0.1  # of 0.5


WATCHES = """
import json, os, signal, sys, time

def busy(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(500))

calls, events = [], []
signal.signal(signal.SIGURG, lambda number, frame: calls.append(number))
busy(0.4)
for _ in range(20):
    os.kill(os.getpid(), signal.SIGURG)
sys.setprofile(lambda frame, event, arg: events.append(frame.f_code.co_filename))
busy(0.4)
sys.setprofile(None)
sys.settrace(lambda frame, event, arg: events.append(frame.f_code.co_filename))
busy(0.4)
sys.settrace(None)
print(json.dumps([len(calls), sorted({os.path.basename(file) for file in events})]))
"""


def test_a_program_that_watches_itself_sees_nothing_of_the_probe(tmp_path: Path) -> None:
    """Its own handler for SIGURG, its profile and its trace function; a thread samples then."""
    done, folder = observed(WATCHES, tmp_path)
    assert (done.stderr, json.loads(done.stdout)) == ("", [20, ["program.py"]])
    (seen,) = map(process, rows_of(folder))
    assert sum(sample.dt for sample in seen.samples) > 0.3


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread samples always")
def test_where_a_thread_has_to_sample_the_report_says_so(tmp_path: Path) -> None:
    """Here what the probe needs is taken from the start on: its parent ignores the signal."""
    taken = [signal.SIGCONT, signal.SIGRTMAX - 5]
    before = [signal.signal(number, signal.SIG_IGN) for number in taken]
    try:
        done, folder = observed(HOLDER, tmp_path)
    finally:
        for number, handler in zip(taken, before, strict=True):
            signal.signal(number, handler)
    assert (done.returncode, done.stderr) == (0, "")
    (seen,) = map(process, rows_of(folder))
    assert sum(sample.dt for sample in seen.samples) > 0.2
    assert seen.by_thread is not None
    assert "signal" in seen.by_thread


SERVED = """
import multiprocessing, time

def work():
    end = time.process_time() + 0.9
    while time.process_time() < end:
        sum(n * n for n in range(500))

if __name__ == "__main__":
    worker = multiprocessing.get_context("forkserver").Process(target=work)
    worker.start()
    worker.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread samples always")
def test_a_worker_of_a_fork_server_samples_itself(tmp_path: Path) -> None:
    """The server has an event loop, for which it gives up the timer; its children have none."""
    done, folder = observed(SERVED, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    seen = [process(rows) for rows in rows_of(folder)]
    (worker,) = (one for one in seen if any(code.plain == "work" for code in one.codes)
                 and "forkserver" in " ".join(one.argv))  # fmt: skip
    number = next(at for at, code in enumerate(worker.codes) if code.plain == "work")
    inside = {at for at, stack in worker.stacks.items() if number in dict(stack.frames)}
    samples = [sample for sample in worker.samples if sample.stack in inside]
    assert samples
    assert all(sample.worked is not None for sample in samples)


COLLECTS = """
import gc, itertools, sys, time

def nothing():
    pass

def collected(phase, info):  # JAX has one, too
    if sys.getprofile() is not None:
        for _ in range(4000):
            nothing()

gc.callbacks.append(collected)
end = time.process_time() + 1.8  # two windows
for number in itertools.cycle(range(5, 9)):
    gc.set_threshold(number)
    for _ in range(50):
        nothing()
    if time.process_time() > end:
        break
"""


@pytest.mark.slow
def test_a_window_that_ends_within_a_garbage_collection(tmp_path: Path) -> None:
    """Python 3.11 collects while it makes the frame to pass to a profile function.

    What then runs in Python is profiled, too. Where the window ends there, the function has been
    taken away once it is called; had it been freed, Python would crash.
    """
    done, folder = observed(COLLECTS, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (rows,) = rows_of(folder)
    assert any(row["k"] == "window" for row in rows)


INTERRUPTS = """
import gc, signal, sys, time

def collected(phase, info):
    frame, names = sys._getframe(), []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    if names.count("tick") == 1 and sys.version_info < (3, 13):  # from then on there is none
        signal.raise_signal(signal.SIGCONT)  # amid the handler one more signal comes in

gc.callbacks.append(collected)
gc.set_threshold(20)
end = None  # a little after the first window has opened
while end is None or time.process_time() < end:
    sum(n * n for n in range(500))
    if end is None and (sys.getprofile() is not None or time.process_time() > 20):
        end = time.process_time() + 0.3
"""


def test_a_signal_within_the_handler_is_left_alone(tmp_path: Path) -> None:
    """What the probe itself does is no part of what the program is seen to do."""
    done, folder = observed(INTERRUPTS, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (rows,) = rows_of(folder)
    own = {row["i"] for row in rows if row["k"] == "code" and row["file"].startswith(str(INJECT))}
    tick = {row["i"] for row in rows if row["k"] == "code" and row["plain"] == "tick"}
    windows = [row for row in rows if row["k"] == "window"]
    assert windows
    for window in windows:
        assert sum(code in tick for code in window["stack"][::2]) == 1
        called = {number for _, kind, number, _ in window["events"] if kind == 0}
        assert called & own <= tick, "the signal that finds the window over"


def test_what_is_injected_is_of_python_3_8_and_the_standard_library() -> None:
    files = sorted(INJECT.glob("*.py"))
    own = {file.stem for file in files}
    assert "sitecustomize" in own
    for file in files:
        tree = ast.parse(file.read_text(), feature_version=(3, 8))
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert not node.level
                names = [node.module or ""]
            for name in names:
                top = name.partition(".")[0]
                assert top in own or top in sys.stdlib_module_names, f"{file.name} imports {name}"


def test_without_its_folder_nothing_is_observed(tmp_path: Path) -> None:
    """A process that outlives the observation starts Pythons of its own: they run as usual."""
    environment = {**os.environ, "PYTHONPATH": str(INJECT)}
    code = "import sys; print('_flatout_probe' in sys.modules, sys.path)"
    for folder in ("", str(tmp_path / "gone")):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            env={**environment, "FLATOUT_EXPLAIN": folder}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0
        assert done.stderr == ""
        assert done.stdout.startswith("False ")
        if folder:
            assert not re.search(r"explain.inject", done.stdout)


def test_a_failure_to_begin_is_left_for_the_report(tmp_path: Path) -> None:
    """The program runs all the same where the probe cannot start: here it is broken."""
    inject = shutil.copytree(INJECT, tmp_path / "inject")
    probe = inject / "_flatout_probe.py"
    probe.write_text(probe.read_text().replace("import atexit", "import _no_such_module"))
    folder = tmp_path / "seen"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "print('ran')"],
        env={**os.environ, "FLATOUT_EXPLAIN": str(folder), "PYTHONPATH": str(inject)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
    (failed,) = folder.glob("*.failed")
    assert "_no_such_module" in failed.read_text()
    assert json.loads(f"[{failed.stem}]")[0] > 0


def test_a_process_whose_own_line_comes_late_is_not_lost(tmp_path: Path) -> None:
    """A fork within a window of counted calls leaves a line before the child's own."""
    late = [{"k": "calls", "t": 1.0}, {"k": "process", "pid": 7}, {"k": "end", "t": 2.0}]
    (tmp_path / "7.jsonl").write_text("\n".join(map(json.dumps, late)) + '\n{"k": "cut')
    (tmp_path / "8.jsonl").write_text(json.dumps({"k": "end", "t": 2.0}) + "\n")
    (rows,) = rows_of(tmp_path)
    assert [row["k"] for row in rows] == ["process", "calls", "end"]


ELAPSED = """
import sys, threading, time

sys.path.insert(0, sys.argv[1])
from _flatout_timer import UNUSED, KernelTimer

timer = KernelTimer(UNUSED, time.pthread_getcpuclockid(threading.get_ident()))
timer.set(30.0, 30.0)
began = time.thread_time()
while time.thread_time() < began + 0.3:
    sum(range(1000))
print(timer.elapsed() - (time.thread_time() - began))
timer.delete()
"""


def test_the_time_since_a_timer_went_off_is_time_of_work() -> None:
    """What a thread does after that belongs to the next sample, however long a call in C is."""
    command = [sys.executable, "-c", ELAPSED, str(INJECT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(0.0, abs=0.02)


WARNS = r"""
import sys, time, warnings

pattern = "\d"  # an escape that Python warns of
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    end = time.process_time() + 0.3
    while time.process_time() < end:
        re_pattern = ["\d", sum(range(500))]
print([str(one.message) for one in caught])
end = time.process_time() + 0.3
while time.process_time() < end:
    warnings.warn("once", stacklevel=1)
    sorted([3, 1, 2])
"""


def test_the_programs_warnings_are_the_same_with_the_probe(tmp_path: Path) -> None:
    done, folder = observed(WARNS, tmp_path, sys.executable, "-W", "default")
    assert done.stdout == "[]\n"
    assert done.stderr.count("UserWarning: once") == 1
    assert [row for rows in rows_of(folder) for row in rows if row["k"] == "leaf"]
