"""Runs somebody's program unchanged and records what it does.

Its output, exit code, arguments and signals pass through. The probe rides on ``PYTHONPATH`` into
every Python process that the program starts, whatever Python that is; the hardware is watched from
here.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.errors import UsageError, one_line
from flatout.explain.program.capacity import together
from flatout.explain.program.evidence import build, rows_of
from flatout.explain.program.timeline import timeline
from flatout.hardware.monitor import Monitor

INJECT = Path(__file__).parent / "inject"
POLL_S = 0.1
MONITOR_S = 0.5
PATIENCE_S = 3.0
"""How long the probe may take to write the rest once it is told to stop."""

IMPORTS_S = 60.0
"""Observation begins when all processes have done their imports, after this long at the latest."""

LONGEST = 4
"""Where a program was seen for less than two whole cycles it is observed for so many times as long,
at most."""

STOP_S = 5.0

FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGCONT", "SIGWINCH")


@dataclass
class Recording:
    """What `record` saw: `meta` and `rows` make the evidence."""

    meta: dict[str, Any]
    rows: list[list[dict[str, Any]]]


def record(
    command: Sequence[str],
    seconds: float,
    observed: Callable[[Recording], None],
    *,
    stop: bool = False,
) -> int:
    """Run a program and observe its first `seconds`.

    Args:
        command: program and arguments.
        seconds: how long to observe, and up to `LONGEST` times as long until two whole cycles of
            collecting and learning were seen; the program goes on to its own end.
        observed: called once with the recording, as soon as it is complete.
        stop: then end the program, politely at first.

    Returns:
        The program's exit code; 128 + n where signal n ended it.

    Raises:
        UsageError: the program cannot be started.
    """
    facts = machine()
    if shutil.which(command[0]) is not None:  # else the error below is said at once
        facts["together"] = round(together(facts["cores"]), 3)  # while the cores are free
    with tempfile.TemporaryDirectory(
        prefix="flatout-explain-",
        ignore_cleanup_errors=True,  # a process that lives on may write
    ) as name:
        folder = Path(name)
        try:
            child = subprocess.Popen(list(command), env=_environment(folder))
        except OSError as error:
            raise UsageError(
                f"{command[0]} cannot be started: {error.strerror or one_line(error)}."
            ) from None
        began = time.monotonic()
        with _signals_passed_on(child):
            meta = {"command": list(command), "began": began, "machine": facts}
            watched = _watch(child, folder, meta, seconds)
            facts["cores"] = watched["cores"]
            observed(_finish(child, folder, meta, watched))
            code = _end(child) if stop else _wait(child)
    return code if code >= 0 else 128 - code


def _environment(folder: Path) -> dict[str, str]:
    path = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "FLATOUT_EXPLAIN": str(folder),
        "PYTHONPATH": os.pathsep.join([str(INJECT), path] if path else [str(INJECT)]),
    }


@contextmanager
def _signals_passed_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """While a program runs, signals to this process are the program's.

    A terminal's Ctrl-C reaches the program by itself: it is only kept from ending this process.
    """

    def forward(number: int, frame: object) -> None:
        if number != signal.SIGINT or not _shares_terminal():
            with suppress(OSError):
                child.send_signal(number)

    before: dict[int, Any] = {}
    for name in (*FORWARDED, "SIGINT"):
        if (number := getattr(signal, name, None)) is not None:
            with suppress(ValueError, OSError):  # not the main thread
                before[number] = signal.signal(number, forward)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _shares_terminal() -> bool:
    """Whether a Ctrl-C comes from a terminal, which sends it to the program as well."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _watch(
    child: subprocess.Popen[bytes], folder: Path, meta: dict[str, Any], seconds: float
) -> dict[str, Any]:
    """Sample the hardware until the program ends or was observed for long enough."""
    samples: list[dict[str, Any]] = []
    began = meta["began"]
    try:
        monitor = Monitor(child.pid, MONITOR_S, clock=time.monotonic)
    except OSError:
        return {"samples": samples, "cores": meta["machine"]["cores"], "notes": []}
    next_sample, limit = began + MONITOR_S, began + seconds + IMPORTS_S
    ready = None
    try:
        while child.poll() is None and time.monotonic() < limit:
            time.sleep(POLL_S)
            if ready is None and _ready(folder):
                ready = time.monotonic()
                limit = min(limit, ready + seconds)
            if time.monotonic() >= next_sample:
                next_sample = time.monotonic() + MONITOR_S
                samples.append(monitor.sample().as_json())
            now = time.monotonic()
            longest = now if ready is None else ready + LONGEST * seconds
            if limit <= now < longest and _partly(folder, meta | {"monitor": [], "ended": now}):
                limit = min(now + seconds / 2, longest)
        return {"samples": samples, "cores": monitor.cores, "notes": list(monitor.notes)}
    finally:
        monitor.close()


def _partly(folder: Path, meta: dict[str, Any]) -> bool:
    """Whether what was seen up to now is less than two cycles of what the program does."""
    evidence = build({**meta, "notes": [], "finished": False}, rows_of(folder))
    return bool(timeline(evidence).part)


def _ready(folder: Path) -> bool:
    """Whether every Python process so far has done its imports."""
    started = {path.name.partition("-")[0] for path in folder.glob("*.jsonl")}
    return bool(started) and started <= {path.stem for path in folder.glob("*.ready")}


def _finish(
    child: subprocess.Popen[bytes], folder: Path, meta: dict[str, Any], watched: dict[str, Any]
) -> Recording:
    """Stop the probes and gather what they wrote."""
    ended = time.monotonic()
    running = child.poll() is None
    (folder / "stop").touch()
    if running:
        _settle(folder)
    rows = rows_of(folder)
    unseen = _unseen(meta["command"], folder, rows, ended - meta["began"])
    seen = {
        "ended": ended, "monitor": watched["samples"], "notes": [*watched["notes"], *unseen],
        "finished": not running,
    }  # fmt: skip
    return Recording(meta | seen, rows)


def _settle(folder: Path) -> None:
    """Wait until no probe writes any more."""
    limit, size = time.monotonic() + PATIENCE_S, -1
    while time.monotonic() < limit:
        time.sleep(0.7)
        now = sum(path.stat().st_size for path in folder.glob("*.jsonl"))
        if now == size:
            return
        size = now


def _end(child: subprocess.Popen[bytes]) -> int:
    """End the program and what it has started: asked first, made to after a while."""
    import psutil

    try:
        started = psutil.Process(child.pid).children(recursive=True)
    except psutil.Error:
        started = []
    with suppress(OSError):
        child.terminate()
    try:
        code = child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        code = child.wait()
    for process in started:
        with suppress(psutil.Error):
            process.terminate()
    for process in psutil.wait_procs(started, timeout=STOP_S)[1]:
        with suppress(psutil.Error):
            process.kill()
    return code


def _wait(child: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue


def machine() -> dict[str, Any]:
    """Facts about this machine that the rules use."""
    from flatout.hardware.inventory import inventory

    hardware = inventory()
    gpus = [gpu.name for gpu in hardware.gpus]
    return {"cores": hardware.cores, "cpu": hardware.cpu_name, "gpus": gpus}


def _unseen(
    command: Sequence[str], folder: Path, rows: Sequence[object], seconds: float
) -> list[str]:
    """What kept the program from being observed, one sentence each."""
    notes = [
        f"Process {failed.stem} could not be observed ({failed.read_text().strip()})."
        for failed in folder.glob("*.failed")
    ]
    if rows:
        return notes
    program = Path(command[0]).name
    if flags := blocking_flags(command):
        why = (
            f"Python was started with {' '.join(flags)}, which keeps it from loading the probe: "
            "only the hardware's use was seen. Run it without."
        )
    elif shutil.which(command[0]) is None or "python" not in program:
        why = (
            f"No Python process of {program} could be observed: it starts none, or clears its "
            "environment."
        )
    else:
        why = f"Python ended after {seconds:.1f} s, before anything could be seen."
    return [*notes, why]


def blocking_flags(command: Sequence[str]) -> list[str]:
    """Flags of the Python command line with which no probe can be loaded: -I, -E, -S."""
    if "python" not in Path(command[0]).name and "pypy" not in Path(command[0]).name:
        return []
    found = []
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-") or word in ("-", "--"):
            break
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                next(words, None)
            continue
        letters = word[1:]
        for position, letter in enumerate(letters, 1):
            if letter in "cm":  # what follows is the program
                return found
            if letter in "WX":  # the rest is its argument, or the next word
                if position == len(letters):
                    next(words, None)
                break
            if letter in "IES":
                found.append(f"-{letter}")
    return found
