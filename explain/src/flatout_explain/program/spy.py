"""Observes a running Python process through py-spy."""

from __future__ import annotations

import ast
import json
import math
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from itertools import chain, pairwise
from pathlib import Path
from types import CodeType
from typing import Any

import psutil

from flatout_explain.errors import FlatoutError, UsageError, one_line
from flatout_explain.installing import install
from flatout_explain.program.attach import begun, machine, probe_module, working_folder
from flatout_explain.program.evidence import Recording
from flatout_explain.program.watch import Watch

RATE = 50  # samples per second
RARE = 300  # samples of a thread, of which one may be of two moments

BRIEF = 0.9  # of the longest thread's seconds: one with less was not seen all the time

Frame = tuple[str, str, int]  # name, file, line

THREAD = re.compile(r'(?:Process (?P<pid>\d+) )?Thread \S+(?: "(?P<name>.*)")?')
STDLIB = re.compile(r"(.*/lib/python3\.\d+)/(?!site-packages/|dist-packages/)")


def record_pid(pid: int, seconds: float) -> Recording:
    """Observe a process for some seconds without disturbing it.

    py-spy gives the stacks of all threads, also of the processes that it has started, without
    calls: the evidence has no windows.

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
        raise FlatoutError(f"--pid needs py-spy: {install('pid')}.")
    note = (
        f"Process {pid} was observed from outside, with py-spy: calls and garbage collections "
        "were not counted, and the sizes of batches and the program's start were not seen."
    )
    meta = begun(argv or [f"process {pid}"], machine()) | {"notes": [note], "finished": False}
    with working_folder() as folder:
        file = folder / "stacks.json"
        child = subprocess.Popen(
            [spy, "record", "--pid", str(pid), "--duration", str(max(1, round(seconds))),
             "--rate", str(RATE), "--format", "speedscope", "--output", str(file), "--nonblocking",
             "--full-filenames", "--subprocesses", "--threads", "--idle"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        with closing(Watch(child, folder, meta, pid=pid)) as watched:
            watched.run(math.inf)
        messages = (child.communicate()[1] or "").strip().splitlines()
        if child.returncode or not file.exists():
            why = one_line(RuntimeError(messages[-1] if messages else "no reason given"))
            raise FlatoutError(
                f"py-spy cannot read process {pid} ({why}); on Linux this needs root or "
                "kernel.yama.ptrace_scope=0."
            )
        profiles = json.loads(file.read_text(errors="replace"))
    meta["notes"] += notes_of_profiles(profiles)
    meta["ended"] = time.monotonic()
    return meta, rows_of_profiles(profiles, pid, meta["began"], argv)


def rows_of_profiles(
    found: dict[str, Any], pid: int, began: float, argv: Sequence[str]
) -> list[list[dict[str, Any]]]:
    """Return py-spy's profiles, one for each thread, as the probe's rows of each process; the first
    process is `pid`."""
    frames = [(frame["name"], frame["file"], frame["line"] or 0)
              for frame in found["shared"]["frames"]]  # fmt: skip
    files = (STDLIB.match(file) for _, file, _ in frames)
    stdlib = next((match[1] for match in files if match), "/lib/python3")
    processes = {pid: Stacks(pid, began, argv, stdlib)}
    for profile in found["profiles"]:
        match = THREAD.match(profile["name"])
        owner, name = (int(match["pid"] or pid), match["name"]) if match else (pid, None)
        process = processes.setdefault(owner, Stacks(owner, began, argv, stdlib))
        # Frames without a file are the names of processes and threads.
        stacks = [[frames[at] for at in reversed(sample) if frames[at][1]]
                  for sample in profile["samples"]]  # fmt: skip
        process.add_thread(name or "", zip(whole(stacks), profile["weights"], strict=True))
    return [process.rows() for process in processes.values()]


def notes_of_profiles(found: dict[str, Any]) -> list[str]:
    """Return a sentence about threads that were not there all the time: py-spy does not write when
    it took a sample, so that those of each thread are placed at the beginning."""
    seconds = {profile["name"]: sum(profile["weights"]) for profile in found["profiles"]}
    longest = max(seconds.values(), default=0.0)
    brief = [name for name, seen in seconds.items() if seen < BRIEF * longest]
    if not brief:
        return []
    others = f" and {len(brief) - 1} more" if len(brief) > 1 else ""
    return [
        f"{brief[0]}{others} began later or ended earlier than the longest thread, or py-spy could "
        f"not read some of the samples; when is unknown: all that was seen of such a thread ("
        f"{seconds[brief[0]]:.1f} of {longest:.1f} s) is shown at the beginning, next to what the "
        "other threads did then."
    ]


def whole(stacks: list[list[Frame]]) -> list[list[Frame]]:
    """Return a thread's stacks, empty if they may mix two moments: py-spy does not stop the process
    while it reads a stack, and may find a function under one that never calls it. Calls that were
    seen in hardly any sample are taken for such."""
    calls = [{(inner[:2], outer[:2]) for inner, outer in pairwise(stack)} for stack in stacks]
    times = Counter(chain.from_iterable(calls))
    rare = len(stacks) // RARE
    return [
        stack if all(times[call] > rare for call in own) else []
        for stack, own in zip(stacks, calls, strict=True)
    ]


class Stacks:
    """The stacks of one process, as the probe's rows."""

    def __init__(self, pid: int, began: float, argv: Sequence[str], stdlib: str) -> None:
        self._rows: list[dict[str, Any]] = [
            {"k": "process", "pid": pid, "t": began, "python": [3], "argv": list(argv),
             "stdlib": stdlib, "outside": True}
        ]  # fmt: skip
        self._codes: dict[tuple[str, str], int] = {}
        self._lines: dict[tuple[int, int], str] = {}  # (code, line) -> file
        self._stacks: dict[tuple[int, ...], int] = {}
        self._lanes = 0
        self._samples: list[list[float]] = []

    def add_thread(self, name: str, samples: Iterable[tuple[list[Frame], float]]) -> None:
        """Add a thread's stacks, innermost frame first, with the seconds that each stands for."""
        lane, t = self._lanes, 0.0
        self._lanes += 1
        self._rows.append({"k": "lane", "i": lane, "main": name == "MainThread", "name": name})
        for stack, seconds in samples:
            t += seconds
            if stack:
                self._samples.append([round(t, 4), seconds, lane, self._stack(stack), 0])

    def _stack(self, frames: list[Frame]) -> int:
        flat: list[int] = []
        for name, file, line in frames:
            code = self._codes.setdefault((name, file), len(self._codes))
            self._lines[code, line] = file
            flat += [code, line]
        known = len(self._stacks)
        number = self._stacks.setdefault(tuple(flat), known)
        if number == known:
            self._rows.append({"k": "stack", "i": number, "at": 0, "f": flat})
        return number

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows."""
        source = Source()
        rows = list(self._rows)
        lines_of = defaultdict[int, set[int]](set)
        for code, line in self._lines:
            lines_of[code].add(line)
        for (name, file), code in self._codes.items():
            lines = lines_of[code]
            known = {"file": file, "plain": name.rpartition(".")[2], "line": 0, "qualname": name}
            rows.append({"k": "code"} | known | source.described(name, file, lines) | {"i": code})
        for (code, line), file in self._lines.items():
            if text := source.line(file, line):
                rows.append({"k": "site", "c": code, "line": line, "text": text})
        samples = sorted(self._samples, key=lambda sample: sample[0])
        return [*rows, {"k": "samples", "d": samples}]


class Source:
    """The program's source, described as the probe does; it is compiled, and never run."""

    def __init__(self) -> None:
        own = probe_module("_flatout_own")
        self._line, self._text = own.source_line, own.source_of
        self._is_users = probe_module("_flatout_source").is_users
        self._named = probe_module("_flatout_flow").base_of  # a dotted name, or None
        self._seen = probe_module("_flatout_seen").Seen
        self._files: dict[str, tuple[list[CodeType], dict[str, ast.ClassDef], dict[str, str]]] = {}

    def described(self, name: str, file: str, lines: set[int]) -> dict[str, Any]:
        """Return the probe's row about a function seen at these lines; empty if unknown."""
        rows: list[dict[str, Any]] = []
        for code in self.read(file)[0]:
            own = {line for _, _, line in code.co_lines()}
            if code.co_name == name.rpartition(".")[2] and lines <= own:
                self._seen(rows.append).code(code, None)
                break
        owner = self._owner(name.rpartition(".")[0].rpartition(".")[2], file)
        return (rows[0] if rows else {}) | ({} if owner is None else {"self": owner})

    def _owner(self, name: str, file: str) -> dict[str, Any] | None:
        """Return the probe's description of a class, as far as its file has it; else None."""
        _, classes, modules = self.read(file)
        if name not in classes:
            return None
        bases, order = list[str](), [name]
        for each in order:  # which grows by its bases
            for base in (self._named(one) or "" for one in classes[each].bases):
                if base in classes:
                    order += [base] if base not in order else []
                elif base:
                    first, *rest = base.split(".")
                    found = [*modules.get(first, first).split("."), *rest]
                    bases.append(f"{found[0]}.{found[-1]}")
        module = Path(file).stem
        return {"name": name, "module": module, "bases": [f"{module}.{name}", *bases],
                "learns": False}  # fmt: skip

    def read(self, file: str) -> tuple[list[CodeType], dict[str, ast.ClassDef], dict[str, str]]:
        """Return the functions of a user's file and the file's own code; the classes of any file,
        and the full names of what it imports."""
        if file not in self._files:
            codes = list[CodeType]()
            classes, names = dict[str, ast.ClassDef](), dict[str, str]()
            with suppress(SyntaxError, ValueError, RecursionError), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the program's source
                text = self._text(file)
                for one in ast.walk(ast.parse(text)):
                    if isinstance(one, ast.ClassDef):
                        classes[one.name] = one
                    elif isinstance(one, ast.Import | ast.ImportFrom):
                        head = getattr(one, "module", None)
                        for alias in one.names:
                            known = alias.asname or alias.name.partition(".")[0]
                            names[known] = f"{head}.{alias.name}" if head else alias.name
                if text and self._is_users(file):
                    codes = [compile(text, file, "exec", dont_inherit=True)]
            for code in codes:  # which grows
                codes += [one for one in code.co_consts if isinstance(one, CodeType)]
            self._files[file] = codes, classes, names
        return self._files[file]

    def line(self, file: str, number: int) -> str:
        """Return a line of a user's file."""
        return self._line(file, number).strip()[:100] if self._is_users(file) else ""
