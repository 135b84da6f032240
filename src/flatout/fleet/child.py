"""A child process that trains, and what becomes of it."""

from __future__ import annotations

import subprocess
import sys

from flatout.errors import FlatoutError
from flatout.storage.trust import child_variables


def run_module(what: str, *arguments: str, limit_s: float | None = None) -> str:
    """Run ``python -m ARGUMENTS``, which imports what this process would; returns its stdout.

    Raises:
        FlatoutError: it failed (with its last line) or took longer than `limit_s`; `what` it was.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-P", "-m", *arguments], stdin=subprocess.DEVNULL, stdout=pipe,
        stderr=pipe, env=child_variables(), encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise FlatoutError(f"{what} did not end within {limit_s:.0f} s.") from None
        finally:
            if process.poll() is None:  # also where this process was interrupted
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
    if process.returncode:
        last = (err.strip().splitlines() or ["no message"])[-1]
        raise FlatoutError(f"{what} failed: {last.removeprefix('flatout: ')}")
    return out
