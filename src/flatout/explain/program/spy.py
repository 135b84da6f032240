"""Observes a running Python process through py-spy."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from flatout.errors import FlatoutError, UsageError, one_line
from flatout.explain.program.attach import machine, working_folder
from flatout.explain.program.evidence import Recording
from flatout.explain.program.watch import MONITOR_S
from flatout.hardware.monitor import Monitor
from flatout.installing import install

RATE = 50  # samples per second

FRAME = re.compile(r"^(?P<name>.*) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)$")


def record_pid(pid: int, seconds: float) -> Recording:
    """Observe a process for some seconds without disturbing it.

    py-spy gives stacks without times and calls: the evidence has no windows, and its samples are
    in no meaningful order.

    Raises:
        UsageError: there is no such process.
        FlatoutError: py-spy is missing, or may not read the process.
    """
    try:
        process = psutil.Process(pid)
        argv = process.cmdline()
    except (psutil.Error, ValueError, OverflowError):
        raise UsageError(f"--pid {pid}: no such process, or none of yours.") from None
    # In the folder of a Python that was called by its path, it is not on PATH.
    spy = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if spy is None:
        raise FlatoutError(f"--pid needs py-spy: {install('explain')}.")
    began = time.monotonic()
    with working_folder() as folder:
        file = folder / "stacks.txt"
        child = subprocess.Popen(
            [spy, "record", "--pid", str(pid), "--duration", str(max(1, round(seconds))),
             "--rate", str(RATE), "--format", "raw", "--output", str(file), "--nonblocking"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        samples = []
        with closing(Monitor(pid, MONITOR_S, clock=time.monotonic)) as monitor:
            while child.poll() is None:
                time.sleep(MONITOR_S)
                samples.append(monitor.sample().as_json())
        messages = (child.communicate()[1] or "").strip().splitlines()
        if child.returncode or not file.exists():
            why = one_line(RuntimeError(messages[-1] if messages else "no reason given"))
            raise FlatoutError(
                f"py-spy cannot read process {pid} ({why}); on Linux this needs root or "
                "kernel.yama.ptrace_scope=0."
            )
        rows = rows_of_stacks(file.read_text(errors="replace").splitlines(), pid, began, argv)
    ended = time.monotonic()
    note = f"Process {pid} was read from outside: no exact counts, no timeline, no start-up."
    meta = {
        "command": argv or [f"process {pid}"], "began": began, "ended": ended,
        "monitor": samples, "machine": machine() | {"cores": monitor.cores}, "notes": [note],
        "finished": False,
    }  # fmt: skip
    return meta, [rows]


def rows_of_stacks(
    lines: Sequence[str], pid: int, began: float, argv: Sequence[str]
) -> list[dict[str, Any]]:
    """py-spy's stacks (``outer (file:line);inner (file:line) count``) as the probe's rows."""
    rows: list[dict[str, Any]] = [
        {"k": "process", "pid": pid, "t": began, "python": [3], "argv": list(argv),
         "stdlib": "/lib/python3", "timed": False},
        {"k": "lane", "i": 0, "main": True, "name": None},
    ]  # fmt: skip
    codes: dict[tuple[str, str], int] = {}
    sampled: list[int] = []
    for index, line in enumerate(lines):
        stack, _, count = line.rpartition(" ")
        if not count.isdigit():
            continue
        flat: list[int] = []
        for match in filter(None, map(FRAME.match, reversed(stack.split(";")))):
            name, file = match["name"], match["file"]
            if (name, file) not in codes:
                plain, codes[name, file] = name.rpartition(".")[2], len(codes)
                row = {"k": "code", "i": len(codes) - 1, "file": file, "plain": plain, "line": 0}
                rows.append(row | ({"qualname": name} if plain != name else {}))
            flat += [codes[name, file], int(match["line"] or 0)]
        if flat:
            rows.append({"k": "stack", "i": index, "at": 0, "f": flat})
            sampled += [index] * int(count)
    timed = [[round(n / RATE, 4), 1 / RATE, 0, index, 0] for n, index in enumerate(sampled, 1)]
    return [*rows, {"k": "samples", "d": timed}]
