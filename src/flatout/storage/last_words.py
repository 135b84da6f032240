"""What a run's process died of, where it could not say so itself: known when the run goes on.

While a process runs, its folder holds `RUNNING`, which tells when it began and on what machine,
and `FAULT`, into which `faulthandler` writes where a fatal signal (a segmentation fault) came. A
process that ends by itself, also one that fails, removes both; what lies there at the next resume
is of one that was killed, crashed, or left through `os._exit`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path

from flatout.errors import FlatoutError
from flatout.output import printable
from flatout.storage import nofollow

RUNNING, FAULT = ".running", "fault.log"
LONGEST = 1 << 16
"""Bytes of either file that are read."""

LONGEST_NAME = 300
"""Characters of what is quoted from it."""


class LastWords:
    """Keeps what its process may die of.

    Args:
        folder: the run's.
        report: let `faulthandler` write there and on stderr, where it is not on yet.

    Attributes:
        before: what the process before died of, as a sentence; empty where it ended by itself.
    """

    def __init__(self, folder: Path, report: bool = False) -> None:
        self._files = (folder / RUNNING, folder / FAULT)
        self.before = _died(*(_read(file) for file in self._files))
        self._reports = False
        self._tee: subprocess.Popen[bytes] | None = None
        try:
            for file in self._files:
                file.unlink(missing_ok=True)
            with os.fdopen(_create(self._files[0]), "w") as marker:
                json.dump({"boot": _boot(), "out_of_memory": out_of_memory_kills()}, marker)
            if report and not faulthandler.is_enabled():
                self._reports = True
                self._tee = _tee(self._files[1])
        except OSError as error:
            raise FlatoutError(f"cannot write {folder}: {error.strerror}.") from error

    def close(self) -> None:
        """The process ends by itself."""
        if self._reports:
            faulthandler.disable()
            self._reports = False
        if self._tee is not None:
            assert self._tee.stdin is not None
            self._tee.stdin.close()
            with suppress(subprocess.TimeoutExpired):  # a process that holds the other end, too
                self._tee.wait(1.0)
            self._tee.kill()
            self._tee.wait()
            self._tee = None
        for file in self._files:
            with suppress(OSError):
                file.unlink()


def out_of_memory_kills() -> int:
    """How often the kernel has killed a process for memory since it started, 0 where unknown."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _boot() -> str:
    """Another one each time that the machine starts."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _create(file: Path) -> int:
    return nofollow.open_file(file, nofollow.NEW)


def _read(file: Path) -> str | None:
    """A file's text; None where there is none, or something else lies there."""
    try:
        return nofollow.read(file, limit=LONGEST).decode(errors="replace")
    except OSError:
        return None


def _tee(file: Path) -> subprocess.Popen[bytes] | None:
    """Let `faulthandler` write to stderr and into a file: it knows only one, and in a process that
    dies nothing of Python runs."""
    descriptor = _create(file)
    try:
        tee = subprocess.Popen(
            ["tee", f"/dev/fd/{descriptor}"], stdin=subprocess.PIPE, stdout=2,
            stderr=subprocess.DEVNULL, pass_fds=[descriptor], start_new_session=True,
            restore_signals=False,
        )  # fmt: skip
    except OSError:  # there is no such program: then only into the file
        faulthandler.enable(descriptor, all_threads=False)
        return None
    os.close(descriptor)
    assert tee.stdin is not None
    faulthandler.enable(tee.stdin.fileno(), all_threads=False)
    return tee


def _died(running: str | None, fault: str | None) -> str:
    """The sentence about a process that left these two texts."""
    if running is None:
        return ""
    died = "the process before "
    found = re.search(r"^(?:Fatal Python error: )?(.+)", fault or "")
    if found is not None:
        place = re.search(r'File "(.+)", line (\d+) in (.+)', fault or "")
        where = "" if place is None else f" in {place[3]} ({place[1]}:{place[2]})"[:LONGEST_NAME]
        return printable(f"{died}died of: {found[1][:LONGEST_NAME]}{where}")
    try:
        told = json.loads(running)
        boot, kills = str(told["boot"]), int(told["out_of_memory"])
    except (ValueError, TypeError, KeyError, OverflowError):
        boot, kills = _boot(), out_of_memory_kills()
    if boot != _boot():
        return f"{died}ended without a word; since then the machine was started again"
    if out_of_memory_kills() > kills:
        return f"{died}was killed, probably by the kernel because memory ran out"
    crashed = ", crashed" if fault is None else ""
    return (
        f"{died}ended without a word: it was killed (SIGKILL, or a second Ctrl-C){crashed}, or its "
        "code called os._exit"
    )
