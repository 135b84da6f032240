"""Locks and channels end with the process that holds them, not with its forked children."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")

HELD = """
import os, socket, subprocess, sys
from pathlib import Path
from flatout_explain.files import locks
from flatout_explain.files.kernel import close_in_children

def fork():
    # A child that lives until this process ends.
    read, write = os.pipe()
    ready, runs = os.pipe()
    if os.fork() == 0:
        os.close(write)
        os.write(runs, b"x")
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    os.read(ready, 1)
    return write

def locked(path):
    return locks.in_use(path)

path = Path(sys.argv[1])
"""
FORKED = """
lock = locks.Lock(path)
child = fork()
assert locked(path), "the child's end took the lock from its parent"
lock.close()
assert not locked(path), "the child holds the lock"
"""
PASSED = """
lock = locks.Lock(path)
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[lock.fileno()])
lock.close()
assert locked(path), "a process that was given the lock lost it"
child.communicate()
assert not locked(path)
"""
GIVEN = """
lock = locks.Lock(path)
number = os.dup(lock.fileno())  # as a worker is given it
lock.close()
os.set_inheritable(number, True)
close_in_children(number)
child = fork()
program = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
assert locked(path)
os.close(number)
assert not locked(path), "what was forked or executed holds the lock"
program.communicate()
"""
CHANNEL = """
ours, theirs = socket.socketpair()
close_in_children(theirs)
child = fork()
theirs.close()
ours.settimeout(20)
assert ours.recv(1) == b"", "the child holds the channel"
ours.close()
"""
REUSED = """
lock = locks.Lock(path)
read, write = os.pipe()
if os.fork() == 0:
    number = lock.fileno()
    opened = [os.open("/", os.O_RDONLY) for _ in range(8)]
    lock.close()
    os.write(write, b"ok" if number not in opened and all(map(os.fstat, opened)) else b"no")
    os._exit(0)
assert os.read(read, 2) == b"ok", "closing the lock closed another file"
lock.close()
"""


@pytest.mark.parametrize(
    "case",
    [FORKED, PASSED, GIVEN, CHANNEL, REUSED],
    ids=["forked", "passed", "given", "channel", "reused"],
)
def test_a_forked_child_holds_nothing(case: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", HELD + case, str(tmp_path / "lock")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
