"""A child process, measured from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import busy_s

MIB = 1024 * 1024
Row = dict[str, Any]


class BenchmarkError(RuntimeError):
    """A child failed, or a comparison would not be honest."""


@dataclass(frozen=True)
class Command:
    """A child process to run: its command line and variables to add (None removes one).

    `run_dir` is deleted before; `finish` adds to the child's result, outside the measured time.
    """

    argv: Sequence[str]
    env: Mapping[str, str | None] = field(default_factory=dict)
    run_dir: Path | None = None
    finish: Callable[[Command, Row], Row] | None = None


@dataclass(frozen=True)
class Child:
    """How a child ended: seconds, MiB, and the load in cores of all other processes.

    `written_mb` is what it wrote to files on disk, as the system counts it.
    """

    code: int
    timed_out: bool
    wall_s: float
    cpu_s: float
    max_rss_mb: float
    written_mb: float
    other_load: float | None
    stdout: str
    stderr: str


def run_child(
    argv: Sequence[str], env: Mapping[str, str | None] | None = None, timeout_s: float = 3600.0
) -> Child:
    """Run a command to its end in its own process group, which is killed if this is interrupted."""
    variables = {**os.environ, **(env or {})}
    variables = {name: value for name, value in variables.items() if value is not None}
    variables["BENCHMARK_BEGAN"] = str(time.time())  # a child reports seconds since then
    busy = busy_s()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        late: list[bool] = []

        def stop() -> None:
            late.append(True)
            _kill_group(child.pid)

        timer = threading.Timer(timeout_s, stop)
        timer.daemon = True  # an interruption may come before the block that cancels it
        start = time.perf_counter()
        try:
            child = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=variables,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise BenchmarkError(f"{argv[0]} cannot be started: {error.strerror}.") from None
        try:
            timer.start()
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            _kill_group(child.pid)
            child.wait()
            raise
        finally:
            timer.cancel()
        wall_s = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)  # Popen did not wait for it
        cpu_s = usage.ru_utime + usage.ru_stime
        other = None
        if busy is not None and (after := busy_s()) is not None:
            other = max(0.0, (after - busy - cpu_s) / wall_s)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, KiB on Linux
    rss_mb = usage.ru_maxrss * unit / MIB
    written_mb = usage.ru_oublock * 512 / MIB
    return Child(
        child.returncode, bool(late), wall_s, cpu_s, rss_mb, written_mb, other, texts[0], texts[1]
    )


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def run_checked(argv: Sequence[str], env: Mapping[str, str | None] | None = None) -> Child:
    """Run a command that must succeed; otherwise raise `BenchmarkError`."""
    child = run_child(argv, env)
    if child.code:
        raise BenchmarkError(f"{' '.join(argv)} ended with {child.code}:\n{child.stderr}")
    return child


def json_of(child: Child, what: str) -> Row:
    """Return the one JSON object that a child printed.

    Raises:
        BenchmarkError: it failed, was killed, or printed something else.
    """
    if child.code != 0 and child.timed_out:
        raise BenchmarkError(f"{what} was killed: not finished within {child.wall_s:.0f} s.")
    if child.code != 0:
        tail = "\n".join(child.stderr.strip().splitlines()[-15:])
        raise BenchmarkError(f"{what} ended with {child.code} after {child.wall_s:.1f} s:\n{tail}")
    try:
        value = json.loads(child.stdout)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise BenchmarkError(
            f"{what} did not print one JSON object alone, but: {child.stdout[:300]!r}"
        )
    return value
