"""Child processes that import the same modules as this process; commands and probes start them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

from flatout.errors import FlatoutError, Interrupt, UsageError, one_line

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
        last = (err.strip().splitlines() or ["no message"])[-1]
        raise FlatoutError(f"{what} failed: {last.removeprefix('flatout: ')}")
    return out


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


def follow_parent() -> None:
    """End this process when its parent ends, and ignore signals, which the parent handles.

    The parent holds the other end of standard input, which closes when the parent ends.
    """
    for number in Interrupt.signals:
        signal.signal(number, signal.SIG_IGN)
    lifeline = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)

    def watch() -> None:
        os.read(lifeline, 1)  # returns when the parent is gone, even if a step hangs
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
