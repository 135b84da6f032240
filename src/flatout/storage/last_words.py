"""Why a run's last process died, reported when the run is resumed.

While a process runs, its folder holds `RUNNING` (the machine's boot and its out-of-memory kills)
and `FAULT` (into which `faulthandler` writes a fatal signal's stack). A process that ends or fails
by itself removes both; at a resume they are left from one that was killed, crashed, or called
`os._exit`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path

from flatout.child import out_of_memory_kills
from flatout.errors import writing
from flatout.output import printable
from flatout.storage import trees
from flatout_explain.documents import parse_json
from flatout_explain.files import nofollow
from flatout_explain.files.kernel import PASSES_DESCRIPTORS, boot_id

RUNNING, FAULT = ".running", "fault.log"
LONGEST = 1 << 16
"""Maximum bytes read from either file."""
LONGEST_NAME = 300
"""Maximum characters quoted from it."""


class LastWords:
    """Records why this process dies, and reports why the last one did.

    Args:
        report: let `faulthandler` write there and on stderr, unless it is enabled already.
    """

    def __init__(self, folder: Path, report: bool = False) -> None:
        self._files = (folder / RUNNING, folder / FAULT)
        # Why the last process died, as a sentence; empty if it ended by itself.
        self.before = _died(*(_read(file) for file in self._files))
        self._reports = False
        self._tee: subprocess.Popen[bytes] | None = None
        with writing(folder):
            for file in self._files:
                trees.remove_file(file)
            with nofollow.open_stream(self._files[0], nofollow.NEW) as marker:
                kills = {"boot": boot_id(), "out_of_memory": out_of_memory_kills()}
                marker.write(json.dumps(kills).encode())
            if report and not faulthandler.is_enabled():
                self._reports = True
                self._tee = _tee(self._files[1])

    def close(self) -> None:
        """Remove the files: the process ends by itself."""
        if self._reports:
            faulthandler.disable()
        if self._tee is not None:
            assert self._tee.stdin is not None
            with suppress(OSError):  # user code may have closed it
                self._tee.stdin.close()
            with suppress(subprocess.TimeoutExpired):  # another process holds the pipe open
                self._tee.wait(1.0)
            self._tee.kill()
            self._tee.wait()
        for file in self._files:
            with suppress(OSError):
                trees.remove_file(file)


def _read(file: Path) -> str | None:
    """A file's text; None if there is no such file."""
    try:
        return nofollow.read(file, limit=LONGEST).decode(errors="replace")
    except OSError:
        return None


def _tee(file: Path) -> subprocess.Popen[bytes] | None:
    """Let `faulthandler` write to stderr and into a file; it supports only one descriptor."""
    descriptor = nofollow.open_file(file, nofollow.NEW)
    try:
        if not PASSES_DESCRIPTORS:
            raise OSError("no descriptor can be passed")
        tee = subprocess.Popen(
            ["tee", f"/dev/fd/{descriptor}"], stdin=subprocess.PIPE, stdout=2,
            stderr=subprocess.DEVNULL, pass_fds=[descriptor], start_new_session=True,
            restore_signals=False,
        )  # fmt: skip
    except OSError:  # or there is no `tee`: write only into the file
        faulthandler.enable(descriptor, all_threads=False)
        return None
    os.close(descriptor)
    assert tee.stdin is not None
    faulthandler.enable(tee.stdin.fileno(), all_threads=False)
    return tee


def _died(running: str | None, fault: str | None) -> str:
    """Why a process died that left these two texts."""
    if running is None:
        return ""
    text = "the process before "
    match = re.search(r"^(?:Fatal Python error: )?(.+)", fault or "")
    if match is not None:
        at = re.search(r'File "(.+)", line (\d+) in (.+)', fault or "")
        where = "" if at is None else f" in {at[3]} ({at[1]}:{at[2]})"[:LONGEST_NAME]
        return printable(f"{text}died of: {match[1][:LONGEST_NAME]}{where}")
    try:
        marker = parse_json(running)
        boot, kills = str(marker["boot"]), int(marker["out_of_memory"])
    except (ValueError, TypeError, KeyError, OverflowError):
        boot, kills = boot_id(), out_of_memory_kills()
    if boot != boot_id():
        return f"{text}left no error message; the machine has been restarted since"
    if out_of_memory_kills() > kills:
        return f"{text}was killed, probably by the kernel because memory ran out"
    crashed = ", it crashed" if fault is None else ""
    return (
        f"{text}left no error message: it was killed (SIGKILL, or a second Ctrl-C){crashed}, or "
        "its code called os._exit"
    )
