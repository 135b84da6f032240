"""Runs a user's program unchanged and records what it does.

Output, exit code, arguments and signals pass through. ``PYTHONPATH`` loads the probe into every
Python process of the program; this process samples the hardware.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

import psutil

from flatout_explain import output_file
from flatout_explain.errors import UsageError, one_line, writing
from flatout_explain.files import locks
from flatout_explain.hardware.cores import usable_cores
from flatout_explain.hardware.counters import Counters, full_memory, page_fault_seconds
from flatout_explain.hardware.machine import cpu_name, memory
from flatout_explain.hardware.monitor import Monitor
from flatout_explain.hardware.nvml import visible_gpus
from flatout_explain.hardware.processes import MiB
from flatout_explain.output import command_name
from flatout_explain.program.capacity import together
from flatout_explain.program.command_line import assignments, blocking_flags, flags_and_script
from flatout_explain.program.evidence import KILLED, Recording, rows_of
from flatout_explain.program.watch import POLL_S, Watch, lengths

INJECT = Path(__file__).parent / "inject"
PATIENCE_S = 3.0  # limit for the probe's last writes after a stop
STEADY_S = 5.0  # time without imports and compiling before the program's profiler records
WRITING_S = 60.0  # the longest time for it to write its trace

STOP_S = 5.0

CARDS = "CUDA_VISIBLE_DEVICES"
FOLDER = "FLATOUT_EXPLAIN"  # the variable that names the folder to which the probe writes
PREFIX, LOCK = "flatout-explain-", "lock"
YOUNG_S = 10.0

FORWARDED = [
    getattr(signal, f"SIG{name}")
    for name in ("TERM", "HUP", "USR1", "USR2", "QUIT", "CONT", "WINCH", "INT")
    if hasattr(signal, f"SIG{name}")  # Windows has two of them
]


def record(
    command: Sequence[str],
    seconds: float,
    observed: Callable[[Recording], None],
    *,
    stop: bool = False,
    profiled: float | None = None,
    count: str | None = None,
) -> int:
    """Run a program and observe its first `seconds`.

    Args:
        seconds: how long to observe, or up to `LONGEST` times as long until two whole cycles of
            collecting and learning were seen; then the program continues.
        observed: called once with the complete recording.
        stop: then end the program.
        profiled: for how many of these seconds the program's own profiler records; None without.
        count: count work: environment and optimiser steps, and the calls of this function, unless
            it is empty; None without.

    Returns:
        The program's exit code; 128 + n if signal n ended it.

    Raises:
        UsageError: the program cannot be started.
    """
    with cards_shown(command), working_folder() as folder:
        facts = machine(command)
        if profiled is not None:
            steady = min(STEADY_S, seconds / 4)
            (folder / "record").write_text(f"{profiled} {steady}")
        if count is not None:
            output_file.write(folder / "count", count)
            output_file.write(folder / "held", bytes(8))  # nanoseconds: it is never held
        child, meta = start(command, folder, facts)
        meta |= {} if count is None else {"count": count}
        with signals_handled(FORWARDED, _forwards_to(child)):
            _observe(child, folder, meta, seconds)
            observed(finish(child, folder, meta, time.monotonic()))
            code = end(child) if stop else child.wait()
    return code if code >= 0 else 128 - code


def start(
    command: Sequence[str], folder: Path, facts: dict[str, Any], stderr: IO[bytes] | None = None
) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Start a program with the probe; the process, and what will be its evidence.

    With a file for its standard error it gets no input, its output is dropped, and it has a process
    group of its own. If this process is killed while the program is stopped, the kernel sends that
    group SIGHUP and SIGCONT, as it does with a group that nobody is left to continue.
    """
    try:
        # Descriptors that it inherits, such as a shell's 3>file, stay open.
        stream = None if stderr is None else subprocess.DEVNULL
        child = subprocess.Popen(
            list(command), env=os.environ | variables(folder), close_fds=False, stdin=stream,
            stdout=stream, stderr=stderr, process_group=None if stderr is None else 0,
        )  # fmt: skip
    except OSError as error:
        raise UsageError(
            f"{command[0]} cannot be started: {error.strerror or one_line(error)}."
        ) from None
    return child, begun(command, facts)


@contextmanager
def cards_shown(command: Sequence[str]) -> Iterator[None]:
    """Show this process the GPUs that a program sees whose command line begins with `env`."""
    before, given = os.environ.get(CARDS), assignments(command).get(CARDS)
    if given is None:
        yield
        return
    os.environ[CARDS] = given
    try:
        yield
    finally:
        if before is None:
            del os.environ[CARDS]
        else:
            os.environ[CARDS] = before


def begun(command: Sequence[str], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the evidence of an observation that begins now, without the probes' lines."""
    return {
        "command": list(command), "began": time.monotonic(), "machine": dict(facts), "monitor": [],
        "notes": [],
    }  # fmt: skip


def variables(folder: Path) -> dict[str, str]:
    """Return the environment variables with which a Python process loads the probe."""
    path = os.pathsep.join(filter(None, [str(INJECT), os.environ.get("PYTHONPATH")]))
    return {FOLDER: str(folder), "PYTHONPATH": path}


def probe_module(name: str) -> Any:
    """Return a module of the probe, for this process; others are found for this import only."""
    sys.path.insert(0, str(INJECT))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(INJECT))


@contextmanager
def working_folder() -> Iterator[Path]:
    """Yield a temporary folder, after removing those that killed processes of this user have left.

    A process holds a lock on its folder, which the system releases when the process ends. A folder
    that is younger than `YOUNG_S` may be one whose process is about to lock it.
    """
    with output_file.temporary_folder(PREFIX) as made:
        with writing(made):
            lock = locks.Lock(made / LOCK)
        with closing(lock):
            for left in made.parent.glob(f"{PREFIX}*"):
                with suppress(OSError):
                    found = left.lstat()
                    user = getattr(os, "getuid", int)()  # Windows has none
                    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == user
                    old = mine and time.time() - found.st_mtime > YOUNG_S
                    if old and not locks.in_use(left / LOCK):
                        shutil.rmtree(left, ignore_errors=True)
            yield made


def _forwards_to(child: subprocess.Popen[bytes]) -> Callable[[int, FrameType | None], None]:
    """Return a handler that forwards signals to a program, except a terminal's Ctrl-C, which
    reaches the program by itself."""

    def forward(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT or not _shares_terminal():
            with suppress(OSError):
                child.send_signal(number)

    return forward


@contextmanager
def signals_handled(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Handle signals in another way, where this is the main thread."""
    with ExitStack() as restored:
        for number in numbers:
            with suppress(ValueError):  # not the main thread
                restored.callback(signal.signal, number, signal.signal(number, handler))
        yield


def _shares_terminal() -> bool:
    """Return whether a Ctrl-C comes from a terminal, which sends it to the program, too. Standard
    input may be another file."""
    try:
        terminal = os.open(os.ctermid(), os.O_RDONLY | os.O_NOCTTY)
    except (OSError, AttributeError):  # AttributeError: Windows has no such groups
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _observe(
    child: subprocess.Popen[bytes], folder: Path, meta: dict[str, Any], seconds: float
) -> None:
    """Watch the program from the end of its imports on, until two whole cycles were seen."""
    with closing(Watch(child, folder, meta)) as watched:
        watched.wait_for_imports()
        began = time.monotonic()
        for total in lengths(seconds):
            watched.run(began + total - time.monotonic())
            latest = time.monotonic() + WRITING_S
            while any(folder.glob("*.recording")) and time.monotonic() < latest:
                if watched.ended:
                    break
                watched.run(POLL_S)
            if watched.ended or not watched.part:
                return


def finish(
    child: subprocess.Popen[bytes], folder: Path, meta: dict[str, Any], ended: float
) -> Recording:
    """Stop the probes and read their lines; `ended` is the time by the program's clock."""
    code = child.poll()
    about: dict[str, Any] = {"ended": ended, "finished": code is not None}
    if code is None:
        samples = []
        with closing(Monitor(child.pid, clock=time.monotonic)) as monitor:

            def wait(seconds: float) -> None:
                time.sleep(seconds)
                samples.append(monitor.sample().as_json())

            rows = last_lines(folder, True, wait)
        about["unobserved"] = samples[-1] if len(samples) > 1 else None
    else:
        rows = last_lines(folder, False)
    meta["notes"] += _obstacles(meta["command"], folder, rows, ended - meta["began"])
    if code is not None:
        code = code if code >= 0 else 128 - code
        before = meta["machine"].get("oom_kills", (0, 0))
        oom = full_memory(child.pid, code == KILLED, before, meta["began"])
        about |= {"code": code, "oom": oom, "why": _why(meta["command"], code)}
        if oom and code == KILLED:
            about["why"] = f"the kernel's OOM killer ended it, because {oom} was full"
    return meta | about, rows


def last_lines(
    folder: Path, running: bool, wait: Callable[[float], None] = time.sleep
) -> list[list[dict[str, Any]]]:
    """Stop the probes and return their lines; with running processes, once they stop writing.

    Without its folder a probe ends by itself. In the last `wait` no running probe observes.
    """
    with suppress(FileNotFoundError):
        (folder / "stop").touch()
    limit, before = time.monotonic() + PATIENCE_S, -1
    while running and time.monotonic() < limit:
        wait(0.7)
        size = 0
        with suppress(OSError):  # the program deletes them
            size = sum(path.stat().st_size for path in folder.glob("*.jsonl"))
        if size == before:
            break
        before = size
    return rows_of(folder)


def end(child: subprocess.Popen[bytes]) -> int:
    """Terminate the program and its descendants; kill them after a while."""
    if child.returncode is not None:  # its number may be another process's by now
        return child.returncode
    started: list[psutil.Process] = []
    with suppress(psutil.Error):
        started = psutil.Process(child.pid).children(recursive=True)
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


def machine(command: Sequence[str] = ()) -> dict[str, Any]:
    """Return the machine's facts for the rules; with a command that will be started, also the speed
    of all cores together."""
    cores, (total, available) = usable_cores(), memory()
    facts: dict[str, Any] = {
        "cores": cores, "cpu": cpu_name(), "gpus": [gpu.name for gpu in visible_gpus()[0]],
        "visible": os.environ.get(CARDS, ""),
        "memory_mb": total // MiB, "free_mb": available // MiB,
        "oom_kills": Counters().oom_kills(), "fault_s": page_fault_seconds(),
    }  # fmt: skip
    if command and shutil.which(command[0]) is not None:  # else the error is reported at once
        facts["together"] = round(together(cores), 3)  # while the cores are free
    return facts


def _obstacles(
    command: Sequence[str], folder: Path, rows: Sequence[object], seconds: float
) -> list[str]:
    """Return why the program could not be observed, one sentence for each reason."""
    notes = [
        f"Process {failed.stem} could not be observed ({failed.read_text().strip()})."
        for failed in folder.glob("*.failed")
    ]
    if not (folder / LOCK).is_file():
        notes.append(
            f"The program deleted {folder}, to which the probe writes, and with it everything that "
            "was seen before. Keep it from deleting folders named flatout-explain-*."
        )
        return notes
    if rows:
        return notes
    program = Path(command[0]).name
    if flags := blocking_flags(command):
        named = " ".join(flags)
        why = (
            f"Python was started with {named}, which keeps it from loading the probe: only the use "
            f"of the hardware was seen. Start it without {named}."
        )
    elif shutil.which(command[0]) is None or "python" not in program:
        why = (
            f"No Python process of {program} could be observed: it starts none, or clears the "
            f"environment variables that load the probe. Start Python directly: {command_name()} "
            "-- python script.py."
        )
    else:
        why = (
            f"Python ended after {seconds:.1f} s, before anything could be seen. Let the program "
            "run for longer."
        )
    return [*notes, why]


def _why(command: Sequence[str], code: int) -> str:
    """Return why Python itself failed: it exits with 2 if it cannot open the program's file."""
    _, script = flags_and_script(command)
    missing = code == 2 and script and not Path(script).exists()
    return f"there is no file {script}" if missing else ""
