"""Children that do what ``python -m MODULE ARGUMENTS`` or ``python SCRIPT`` does, without its
second of imports.

They are forked from a process that has imported Flatout and JAX, runs no thread and has not
opened a device: its children share nothing but modules. They end as any interpreter does.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

MODULES = ("flatout.cli.train", "flatout.run.trainer", "flatout.run.factory", "rich.console")


class Child:
    """A child, with that part of `subprocess.Popen`'s interface which tests use.

    Args:
        module: what ``python -m`` would run, or the path of a script.
        argv: its arguments.
        cwd: where.
    """

    def __init__(self, module: str, argv: tuple[str, ...], cwd: Path) -> None:
        self.args = [module, *argv]
        self.returncode: int | None = None
        self._streams = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115
        self._channel, theirs = socket.socketpair()
        with theirs:
            passed = [theirs.fileno(), *(stream.fileno() for stream in self._streams)]
            socket.send_fds(_server(_read_by_imports()), [b"x"], passed)
        request = [module, argv, str(cwd), dict(os.environ)]
        self._channel.sendall(json.dumps(request).encode() + b"\n")
        self.pid = self._number()

    def _number(self) -> int:
        """The next number that the child's parent says: its process id, then its exit code."""
        number = self._channel.recv(4, socket.MSG_WAITALL)
        assert len(number) == 4, "the process that waits for the child was killed"
        return int.from_bytes(number, signed=True)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, or the signal that ended it as a negative number."""
        if self.returncode is None:
            if not select.select([self._channel], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = self._number()
            self._channel.close()
        return self.returncode

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # its exit code is on its way
                os.kill(self.pid, signum)

    def kill(self) -> None:
        """With SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait until it has ended; returns what it printed on both streams."""
        self.wait(timeout)
        texts = self.printed()
        for stream in self._streams:
            stream.close()
        return texts

    def printed(self) -> tuple[str, str]:
        """What it and its own children have printed so far on both streams."""
        texts = list[str]()
        for stream in self._streams:
            stream.seek(0)
            texts.append(stream.read())
        return texts[0], texts[1]


def _read_by_imports() -> tuple[tuple[str, str], ...]:
    """The environment variables that are read when modules are imported."""
    begins = ("JAX_", "OPENBLAS_", "OMP_", "PYTHON")
    return tuple(sorted(pair for pair in os.environ.items() if pair[0].startswith(begins)))


@functools.cache
def _server(_: tuple[tuple[str, str], ...]) -> socket.socket:
    """The way to a process that forks; one for all children that import the same."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    atexit.register(lambda: (ours.close(), process.wait()))
    return ours


def _reap(*_: object) -> None:
    """Take note of children that have ended, and count their CPU time."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def serve(ours: socket.socket) -> None:
    """Fork a child for each request, until nobody can ask; in the child, run its module."""
    for name in MODULES:
        importlib.import_module(name)
    assert not os.path.isdir("/proc") or os.listdir("/proc/self/task") == [str(os.getpid())]
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends who asks
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        data, passed, _, _ = socket.recv_fds(ours, 1, 3)
        if not data:
            return
        if os.fork() == 0:
            break
        for number in passed:
            os.close(number)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with socket.socket(fileno=passed[0]) as channel, channel.makefile() as file:
        module, argv, cwd, variables = json.loads(file.readline())
        if pid := os.fork():  # this process only waits
            channel.sendall(pid.to_bytes(4, signed=True))
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with contextlib.suppress(OSError):
                channel.sendall(code.to_bytes(4, signed=True))
            os._exit(0)
    ours.close()
    for number, descriptor in enumerate(passed[1:], 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    is_script = module.endswith(".py")
    sys.path[0] = os.path.dirname(module) if is_script else cwd
    sys.argv = [module, *argv]
    sys.modules["numpy"].random.seed()
    if is_script:
        runpy.run_path(module, run_name="__main__")
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
