"""A program that the probe observes goes on as if it were alone, whatever it does to Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flatout_explain.program.attach import INJECT
from flatout_explain.program.evidence import process, rows_of
from tests.explain.test_probe import interpreter, observed


def versions(quick: str, *others: str) -> pytest.MarkDecorator:
    """Run a test with one version of Python in the quick tests, and with others in the slow
    ones."""
    return pytest.mark.parametrize(
        "version", [quick, *(pytest.param(other, marks=pytest.mark.slow) for other in others)]
    )


REPLACES = """
import ast, builtins, dis, gc, io, json, linecache, os, signal, sys, threading, time

def work(seconds):
    end = clock() + seconds
    while clock() < end or (profile() is None and clock() < 20):
        add(n * n for n in numbers(500))

clock, profile, add, numbers, say = time.process_time, sys.getprofile, sum, range, print
called = []
for owner, names in {
    ast: "parse walk", builtins: "open sorted compile round any map max", dis: "findlinestarts",
    gc: "get_referents", json: "dumps", json.JSONEncoder: "encode iterencode default",
    json.encoder: "c_make_encoder encode_basestring_ascii", linecache: "getlines updatecache",
    os: "access close getpid open read stat write", os.path: "exists join abspath",
    signal: "getsignal pthread_sigmask set_wakeup_fd signal sigwait raise_signal",
    sys: "_current_frames _getframe getprofile gettrace setprofile",
    threading.Thread: "start", time: "clock_gettime monotonic perf_counter process_time sleep time",
}.items():
    for name in names.split():
        def instead(*arguments, name=name, **named):
            called.append(name)
            raise RuntimeError(name)
        setattr(owner, name, instead)
work(0.6)
say(called)
"""


def test_what_a_program_replaces_is_never_called(tmp_path: Path) -> None:
    done, folder = observed(REPLACES, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    (seen,) = map(process, rows_of(folder))
    assert (seen.failure, seen.by_thread) == (None, None)
    assert sum(sample.dt for sample in seen.samples) > 0.2
    assert seen.windows
    assert any("add(n * n" in text for text in seen.lines.values())


DEEP = """
import sys, time

def down(levels):
    if levels:
        return down(levels - 1)
    end = time.thread_time() + 0.5
    while time.thread_time() < end:
        sum(range(500))
    return "returned"

print(down(sys.getrecursionlimit() - 9))
"""


def test_a_stack_near_the_limit_of_recursion_is_sampled(tmp_path: Path) -> None:
    """The second thread samples it: a handler in the main thread would have no room."""
    done, folder = observed(DEEP, tmp_path)
    assert (done.stdout, done.stderr) == ("returned\n", "")
    (seen,) = map(process, rows_of(folder))
    assert seen.failure is None
    assert sum(sample.dt for sample in seen.samples) > 0.1


RECURSES = """
import time

def depth(reached=0):
    try:
        return depth(reached + 1)
    except RecursionError:
        return reached

plain, found = depth(), set()
end = time.process_time() + 1.2
while time.process_time() < end:
    found.add(plain - depth())
print(*found)
"""


@pytest.mark.parametrize(
    ("version", "fewer"), [pytest.param("3.8", 5, marks=pytest.mark.slow), ("3.13", 0)]
)
def test_a_program_that_recurses_to_the_limit_gets_as_deep(
    tmp_path: Path, version: str, fewer: int
) -> None:
    """Before Python 3.12 calls of C functions count, too: the handler itself needs a few calls."""
    done, folder = observed(RECURSES, tmp_path, interpreter(version))
    assert (done.returncode, done.stderr) == (0, "")
    assert set(map(int, done.stdout.split())) <= set(range(fewer + 1))
    (seen,) = map(process, rows_of(folder))
    assert seen.failure is None
    assert sum(sample.dt for sample in seen.samples) > 0.4


WORK = """
import time

def work(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(500))
"""

BLOCKS = (
    WORK
    + """
import signal

work(0.1)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
work(0.4)
print(signal.sigpending(), signal.sigtimedwait(signal.valid_signals(), 0.1))
"""
)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread samples always")
def test_a_program_that_waits_for_any_signal_gets_none_of_the_probe(tmp_path: Path) -> None:
    done, folder = observed(BLOCKS, tmp_path)
    assert (done.stdout, done.stderr) == ("set() None\n", "")
    (seen,) = map(process, rows_of(folder))
    assert sum(sample.dt for sample in seen.samples) > 0.2


FULL = """
import os, signal, sys, time

reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer, warn_on_full_buffer=sys.argv[1] == "True")
end = time.thread_time() + 0.2
while time.thread_time() < end:
    sum(range(500))
try:
    while True:
        os.write(writer, b"x" * 4096)
except BlockingIOError:
    pass
try:
    while True:
        os.write(writer, b"x")
except BlockingIOError:
    pass
signal.signal(signal.SIGURG, lambda number, frame: None)
signal.raise_signal(signal.SIGURG)
"""


@pytest.mark.parametrize("warns", [True, False])
def test_a_program_is_warned_of_lost_signals_where_it_wants_to(tmp_path: Path, warns: bool) -> None:
    program = FULL.replace("sys.argv[1]", repr(str(warns)))
    done, folder = observed(program, tmp_path)
    assert done.returncode == 0
    assert ("wakeup fd" in done.stderr) is warns
    (seen,) = map(process, rows_of(folder))
    assert seen.by_thread is not None


FORKS = """
import os, time

for _ in range(5):
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        sum(range(500))
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
end = time.monotonic() + 1.0
while time.monotonic() < end:
    time.sleep(0.01)
"""


@versions("3.11", "3.12", "3.13")
def test_a_program_that_forks_is_not_warned_of_the_probes_thread(
    tmp_path: Path, version: str
) -> None:
    done, folder = observed(FORKS, tmp_path, interpreter(version), "-W", "always")
    assert (done.returncode, done.stderr) == (0, "")
    parent = max(map(process, rows_of(folder)), key=lambda one: len(one.samples))
    slept = sum(one.dt - (one.worked or 0.0) for one in parent.samples)
    assert slept > 0.2, "its thread has been started again"


WRITES = """
import os, time

short = 0
for _ in range(8):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        time.sleep(0.02)
        while os.read(reader, 65536):
            pass
        os._exit(0)
    os.close(reader)
    for _ in range(3):
        short += os.write(writer, bytes(5000000)) < 5000000
    os.close(writer)
    os.waitpid(child, 0)
print(short)
"""


@versions("3.8", "3.12", "3.13")
def test_no_write_is_cut_short(tmp_path: Path, version: str) -> None:
    """A signal that meets a write into a full pipe makes it return with a part written."""
    done, folder = observed(WRITES, tmp_path, interpreter(version))
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
    assert all(one.failure is None for one in map(process, rows_of(folder)))


OLDER = """
import os, sys, time
from types import SimpleNamespace

os.uname = lambda: SimpleNamespace(machine="x86_64", release="4.18.0-553.el8_10.x86_64")
sys.path.insert(0, %r)
from _flatout_probe import start

start(%r, None)
end = time.thread_time() + 0.5
while time.thread_time() < end:
    sum(range(500))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="there is no timer")
def test_an_older_kernel_sends_the_signals_outside_of_its_calls(tmp_path: Path) -> None:
    python = interpreter("3.11")
    done = subprocess.run(
        [python, "-c", OLDER % (str(INJECT), str(tmp_path))], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    (seen,) = map(process, rows_of(tmp_path))
    assert seen.by_thread is None
    assert sum(sample.dt for sample in seen.samples) > 0.2


KEEPS = """
import bdb, os, sys, time, weakref

class Batch:
    pass

def forks():
    batch = Batch()
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    return weakref.ref(batch)

def train(seconds, alive=0):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        batch = Batch()
        before = weakref.ref(batch)
        sum(range(500))
        del batch
        alive += before() is not None
    return alive

print(train(0.8), forks()() is None, train(0.4))
"""


@versions("3.11", "3.12", "3.13")
def test_the_values_of_local_variables_live_as_long_as_without_the_probe(
    tmp_path: Path, version: str
) -> None:
    done, _ = observed(KEEPS, tmp_path, interpreter(version), "-W", "error")
    assert (done.stdout, done.stderr) == ("0 True 0\n", "")


PROFILED = """
import sys, threading, time

def work(seconds, clock=time.thread_time):
    lock, count = threading.Lock(), 0
    lock.acquire()
    end = clock() + seconds
    while clock() < end:
        count += len(str(count))
        if clock is time.monotonic:
            lock.acquire(timeout=0.01)
    return count > 0

def profiled(frame, event, arg):
    time.sleep(0)

def ends_itself(frame, event, arg):
    sys.setprofile(None)
    work(0.2)

def other():
    sys.setprofile(profiled)
    assert work(0.2) and work(0.2, time.monotonic)

def main(rate=0.1):
    if sys.getprofile() is None:
        thread = threading.Thread(target=other)
        thread.start()
        sys.setprofile(profiled)
        thread.join()
        assert work(0.2)
        sys.setprofile(ends_itself)
    assert work(0.4) and work(0.2, time.monotonic)
    return rate

print(main())
"""


@pytest.mark.parametrize(
    ("version", "module"),
    [
        ("3.11", None),
        ("3.11", "profile"),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (("3.8", None), ("3.12", None), ("3.12", "profile"))
        ),
    ],
)
def test_a_program_with_a_profile_function_keeps_its_variables(
    tmp_path: Path, version: str, module: str | None
) -> None:
    """The other thread samples it, and the function is slow enough for both to meet."""
    python = interpreter(version)
    options = [] if module is None else ["-m", module]
    done, folder = observed(PROFILED, tmp_path, python, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("0.1\n")
    (seen,) = map(process, rows_of(folder))
    assert (seen.failure, bool(seen.samples)) == (None, True)


WRITTEN = (
    WORK
    + """
import os, signal

work(0.2)
reader, writer = os.pipe()
os.set_blocking(reader, False)
os.set_blocking(writer, False)
before = signal.set_wakeup_fd(writer)
work(0.3)
signal.signal(signal.SIGUSR1, lambda number, frame: None)
signal.raise_signal(signal.SIGUSR1)
signal.raise_signal(signal.SIGCONT)
print(before, list(os.read(reader, 100)) == [signal.SIGUSR1])
"""
)


@versions("3.13", "3.8")
def test_the_probes_signals_are_not_written_to_an_event_loops_descriptor(
    tmp_path: Path, version: str
) -> None:
    done, folder = observed(WRITTEN, tmp_path, interpreter(version))
    assert (done.returncode, done.stdout, done.stderr) == (0, "-1 True\n", "")
    (seen,) = map(process, rows_of(folder))
    assert seen.by_thread is not None


TOOL = (
    WORK
    + """
import sys

tool, seen = sys.monitoring, set()
work(0.2)
tool.use_tool_id(tool.COVERAGE_ID, "coverage")
tool.register_callback(
    tool.COVERAGE_ID, tool.events.PY_START, lambda code, at: seen.add(code.co_name))
tool.set_events(tool.COVERAGE_ID, tool.events.PY_START)
work(0.3)
tool.set_events(tool.COVERAGE_ID, 0)
print("tick" in seen, "work" in seen)
"""
)


@versions("3.13", "3.12")
def test_a_monitoring_tool_meets_no_sampling_in_the_main_thread(
    tmp_path: Path, version: str
) -> None:
    done, _ = observed(TOOL, tmp_path, interpreter(version))
    assert (done.returncode, done.stdout, done.stderr) == (0, "False True\n", "")
