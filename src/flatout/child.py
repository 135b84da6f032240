"""Child processes that import the same modules as this process: the channel to them, and why they
ended.

`run` waits for the end of a child that prints its result. A `Child` receives jobs and sends
messages while it lives; `Parent` is the other end of its channel.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Any

from flatout.errors import FlatoutError, Interrupt, UsageError, one_line
from flatout.output import printable
from flatout_explain.files.kernel import close_in_children, kernel_text

SEND_S = 60.0
"""A child that starts takes what it is sent within this time."""

CHANNEL_LOST = 97
"""The exit code of a child whose code has closed the channel."""

_LENGTH = struct.Struct("<Q")
_LAST = 1 << 12
"""Bytes at the end of a child's standard error in which its last line is looked for."""

_START = (
    "import importlib, json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "module, name = sys.argv.pop(1).split(':'); "
    "sys.exit(getattr(importlib.import_module(module), name)())"
)


def command(function: str, *arguments: str) -> list[str]:
    """Return the command line of a Python process that calls a function with this `sys.path`.

    The path is an argument because Python runs a `sitecustomize.py` from every folder in
    `PYTHONPATH`, and a folder of modules that the user has named may hold a stranger's files too.

    Args:
        function: ``module:name``, called without arguments. It returns the exit code.
        arguments: the entries of `sys.argv` after the program's name.
    """
    path = [entry or os.getcwd() for entry in sys.path]  # -P excludes the working folder
    return [sys.executable, "-P", "-c", _START, json.dumps(path), function, *arguments]


def run(what: str, function: str, *arguments: str, limit_s: float | None = None) -> str:
    """Run a `command` to its end and return its stdout.

    Args:
        what: the command's name in messages.
        limit_s: seconds after which it is terminated.

    Raises:
        FlatoutError: it failed (the message has its last line), or took longer than `limit_s`.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command(function, *arguments), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe,
        encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise FlatoutError(f"{what} did not end within {limit_s:.0f} s.") from None
        finally:
            if process.poll() is None:  # after the time limit, or if this process is interrupted
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
    if process.returncode:
        last = last_line(err) or f"it {how_it_ended(process.returncode)}"
        raise FlatoutError(f"{what} failed: {last}")
    return out


class Child:
    """A child process that receives jobs and sends messages, which are JSON.

    One socket is its standard input and output: it is closed when either process ends.

    Args:
        function, arguments: of `command`.
        variables: its environment variables.
        keeps: descriptors that it gets.
        errors: what its standard error is: a file, whose last line `how_it_ended` quotes, or None
            for that of this process; by default it goes nowhere.
    """

    def __init__(
        self, function: str, *arguments: str, variables: Mapping[str, str] | None = None,
        keeps: Sequence[int] = (), errors: IO[bytes] | int | None = subprocess.DEVNULL,
    ) -> None:  # fmt: skip
        self._kills, self._torn, self._errors = out_of_memory_kills(), b"", errors
        self.end, theirs = socket.socketpair()
        close_in_children(self.end)
        with theirs, ExitStack() as undo:
            undo.callback(self.end.close)
            self.process = subprocess.Popen(
                command(function, *arguments), stdin=theirs.fileno(), stdout=theirs.fileno(),
                stderr=errors, pass_fds=keeps, env=variables, start_new_session=True,
            )  # fmt: skip
            undo.pop_all()

    def send(self, job: bytes) -> None:
        """Send a job; what `receive` finds shows if the child has ended."""
        with suppress(OSError):
            self.end.settimeout(SEND_S)
            self.end.sendall(_LENGTH.pack(len(job)) + job)

    def receive(self, within_s: float) -> list[dict[str, Any]]:
        """Return the messages that arrive, perhaps none that is whole. What else the child's code
        writes into the channel is skipped.

        Raises:
            TimeoutError: nothing arrived in time.
            EOFError: the child has ended.
        """
        self.end.settimeout(None if within_s == math.inf else within_s)
        try:
            text = self.end.recv(1 << 16)
        except BlockingIOError:
            raise TimeoutError from None
        except ConnectionError:
            text = b""
        if not text:
            raise EOFError
        *lines, self._torn = (self._torn + text).split(b"\n")
        found = list[dict[str, Any]]()
        for line in lines:
            with suppress(ValueError, RecursionError):
                message = json.loads(line)
                found += [message] if isinstance(message, dict) else []
        return found

    def close(self, patience_s: float = 0.0) -> int:
        """End it and its process group, by force after some seconds; returns its exit code."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience_s)
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.end.close()
        return self.process.wait()

    def out_of_memory(self, code: int) -> bool:
        """Return whether the kernel ended it with this exit code because memory ran out."""
        return code == -signal.SIGKILL and out_of_memory_kills() > self._kills

    def how_it_ended(self, code: int) -> str:
        """Return the end of a sentence about it."""
        if self.out_of_memory(code):
            return "was killed, probably by the kernel because memory ran out"
        said = ""
        if self._errors is not None and not isinstance(self._errors, int):
            self._errors.seek(max(os.fstat(self._errors.fileno()).st_size - _LAST, 0))
            said = last_line(self._errors.read().decode(errors="replace"))
        return how_it_ended(code) + (f" (its last words: {said})" if said else "")


def last_line(errors: str) -> str:
    """Return the last line of a process's standard error, where it says why it failed."""
    lines = errors.strip().splitlines()
    return printable(lines[-1].removeprefix("flatout: "))[:300] if lines else ""


def how_it_ended(code: int) -> str:
    """Return the end of a sentence about a child that ended with this exit code."""
    if code == CHANNEL_LOST:
        return "closed descriptors that it had not opened"
    if code >= 0:
        return f"ended by itself (exit code {code}): its code called os._exit"
    return f"was killed ({signal.Signals(-code).name})"


def out_of_memory_kills() -> int:
    """Return how many processes the kernel has killed for memory since boot; 0 if unknown."""
    kills = re.search(r"^oom_kill (\d+)", kernel_text("/proc/vmstat"), re.M)
    return int(kills[1]) if kills else 0


class Parent:
    """A child's end of the channel; what the child's code prints goes nowhere.

    Args:
        forks: processes that the child's code forks may send messages, too.
    """

    def __init__(self, forks: bool = False) -> None:
        self._end, self._sending = socket.socket(fileno=os.dup(0)), threading.Lock()
        self._jobs, self._file = self._end.makefile("rb"), os.fstat(self._end.fileno())
        if not forks:
            close_in_children(self._end)
        with open(os.devnull, "r+") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(nothing.fileno(), 1)

    def receive(self) -> bytes:
        """Return the next job; raise `EOFError` where the parent has ended."""
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return self._exactly(size)

    def receive_object(self) -> Any:
        """Return the next job, which the parent has pickled."""
        return pickle.loads(self.receive())

    def _exactly(self, size: int) -> bytes:
        data = self._jobs.read(size)
        if len(data) < size:
            raise EOFError
        return data

    def send(self, **message: Any) -> None:
        """Send a message; threads may do so at the same time.

        If the child's code has closed the channel, the process ends: the descriptor's number may
        lead to a file of the user's.
        """
        line = json.dumps(message).encode() + b"\n"
        with self._sending:
            try:
                if not os.path.samestat(os.fstat(self._end.fileno()), self._file):
                    os._exit(CHANNEL_LOST)
            except OSError:
                os._exit(CHANNEL_LOST)
            with suppress(OSError):  # the parent has ended
                self._end.sendall(line)

    def follow(self) -> None:
        """End this process when the parent ends, after its last job."""
        follow_parent(self._end.fileno())


def as_bytes(job: Any) -> bytes:
    """Pickle a job with cloudpickle; raise `UsageError` if the user's code cannot be pickled."""
    import cloudpickle

    try:
        return cloudpickle.dumps(job)
    except Exception as error:  # the user's code may raise anything
        raise UsageError(
            "the code that makes the environment or acts in it cannot travel to another process "
            f"({type(error).__name__}: {one_line(error)}); pass an id, module:factory, or a "
            "function without open files, locks and the like, or use sampler=inline."
        ) from error


def follow_parent(lifeline: int | None = None) -> None:
    """End this process when its parent ends, and ignore signals, which the parent handles.

    Args:
        lifeline: a descriptor whose other end the parent holds, and closes as it ends; by default
            that of standard input, which then leads nowhere.
    """
    for number in Interrupt.signals:
        signal.signal(number, signal.SIG_IGN)
    held = lifeline
    if held is None:
        held = os.dup(0)
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)

    def watch() -> None:
        os.read(held, 1)  # returns when the parent is gone, even if a step hangs
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
