"""Runs two programs in turns until their ratio of speeds is known well enough, or time is up."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flatout import documents
from flatout.errors import FlatoutError, Interrupt, UsageError, one_line
from flatout.explain.against.outcome import (
    LEAST_PAIRS,
    Outcome,
    common_unit,
    count_words,
    outcome,
    speed_words,
)
from flatout.explain.against.rates import CALLS, UNITS, WALL, Run, run_of
from flatout.explain.program import attach, evidence
from flatout.explain.program.evidence import Recording
from flatout.output import say

COUNTABLE = re.compile(r"[\w.]+:[\w.]+(\(\w+\))?")

SECONDS = 10.0
"""How long a run is observed, unless more than `LEAST_PAIRS` pairs would not fit."""
START_S = 4.0
"""Time that a run takes in addition: to start, to write, and to end."""
SHORTEST_S = 2.0
SHORTEST_COUNT_S = 1.0
"""Minimum time of counted work of a program that ends by itself, unless the other one ends too."""
TAIL_BYTES = 4096


@dataclass
class Comparison:
    """Two programs, and their runs so far."""

    commands: tuple[list[str], list[str]]
    count: str = ""  # the function whose calls are counted, or empty
    files: dict[str, str] = field(default_factory=dict)  # digests of files in the command lines
    # of each program, in the order in which they ended
    runs: tuple[list[Run], list[Run]] = field(default_factory=lambda: ([], []))
    recording: Recording | None = None  # the evidence of the first program's first run

    @property
    def name(self) -> str:
        """The second program's command line."""
        return shlex.join(self.commands[1])

    @property
    def outcome(self) -> Outcome | None:
        """The outcome so far; None before the first pair."""
        return outcome(*self.runs) if all(self.runs) else None

    def as_json(self) -> dict[str, Any]:
        """The comparison as it is saved, without the evidence."""
        runs = [[asdict(run) for run in runs] for runs in self.runs]
        return {"commands": list(self.commands), "count": self.count, "files": self.files,
                "runs": runs}  # fmt: skip

    @staticmethod
    def from_json(values: dict[str, Any]) -> Comparison:
        """A saved comparison; raises as the rules do if it is damaged."""
        first, second = values["commands"]
        ours, theirs = ([Run.from_json(run) for run in runs] for runs in values["runs"])
        return Comparison(
            (list(map(str, first)), list(map(str, second))), str(values["count"]),
            dict(values["files"]), (ours, theirs),
        )  # fmt: skip


def command_of(text: str) -> list[str]:
    """The words of the command line that ``--against`` was given.

    Raises:
        UsageError: it cannot be read, or names no program.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--against {text!r} is not a command line: {one_line(error)}.") from None
    if not words:
        raise UsageError('--against needs a command line: --against "python fixed.py".')
    return words


def check(commands: Sequence[Sequence[str]], count: str) -> None:
    """Refuse what could not be measured before anything is started."""
    matched = COUNTABLE.fullmatch(count)
    words = re.split(r"[.:()]", count.removesuffix(")"))
    if count and not (matched and all(word.isidentifier() for word in words)):
        raise UsageError(
            f"--count {count!r} is no function: write module:function, such as agent:Agent.learn "
            "or __main__:step, or module:function(argument) to count the sum of an argument."
        )
    for command in commands:
        if shutil.which(command[0]) is None:
            raise UsageError(f"{command[0]} cannot be started: there is no such program.")
        if flags := attach.blocking_flags(command):
            raise UsageError(
                f"{shlex.join(command)} cannot be counted: {' '.join(flags)} keeps Python from "
                "loading the probe."
            )


def compare(
    commands: tuple[list[str], list[str]], seconds: float | None, minutes: float, count: str,
    save: Path | None,
) -> Comparison:  # fmt: skip
    """Measure both programs in turns.

    Args:
        seconds: how long to observe each run; None for `SECONDS`, or less if time is short.
        minutes: no run begins that would end later.
        count: the function whose calls are the unit of work, or empty.
        save: the file that keeps the finished runs; those that are there already count.

    Raises:
        FlatoutError: a program failed, or their speeds cannot be compared.
    """
    began, limit = time.monotonic(), 60 * minutes
    found = Comparison(commands, count, _digests(commands))
    if save is not None and save.exists():
        found = _continued(found, save)
    if seconds is None:
        seconds = min(SECONDS, max(limit / (2 * LEAST_PAIRS) - START_S, SHORTEST_S))
    facts, slowest = attach.measured_machine(commands[0]), seconds + START_S
    with attach.signals_handled(Interrupt.signals, _interrupt):
        while True:
            done = len(found.runs[0]) + len(found.runs[1])
            left = limit - (time.monotonic() - began)
            if done and done % 2 == 0:
                result = found.outcome
                if (result is not None and result.narrow) or left < 2 * slowest:
                    return found
            side = (0, 1, 1, 0)[done % 4]
            run_began = time.monotonic()
            longest = max(seconds, min(attach.LONGEST * seconds, left / 2 - START_S))
            run, recording = _run(commands[side], seconds, longest, count, facts)
            slowest = max(slowest, time.monotonic() - run_began)
            found.runs[side].append(run)
            if side == 0 and found.recording is None:
                found.recording = recording
            if all(found.runs):
                refuse_brief(found)
            say(f"{shlex.join(commands[side])}: {_speed(run, count)}")
            if save is not None:
                _save(found, save)


def _run(
    command: list[str], seconds: float, longest: float, count: str, facts: dict[str, Any]
) -> tuple[Run, Recording]:
    """One run.

    Raises:
        FlatoutError: the program failed, or nothing could be counted.
    """
    name = shlex.join(command)
    with tempfile.TemporaryFile() as stderr:
        recording, code = attach.sample_run(command, seconds, longest, count, facts, stderr)
        seen = evidence.build(*recording)
        if seen.finished and code:
            last = _last_line(stderr)
            raise FlatoutError(
                f"{name} failed with exit code {code}" + (f" ({last})." if last else ".")
            )
    if not seen.processes:
        raise FlatoutError(f"{name} cannot be measured: {' '.join(seen.notes)}")
    run = run_of(seen)
    if count and CALLS not in run.rates:
        lasted = f"ended after {run.seconds:.1f} s" if run.ended else f"ran {run.seconds:.0f} s"
        raise FlatoutError(
            f"{name} {lasted} without calls of {count} that could be counted: in the program's own "
            f"file a function is __main__:NAME, and a method is module:Class.method."
        )
    if run.ended and not run.rates:
        raise FlatoutError(f"{name} ended after {run.seconds:.1f} s, before anything was counted.")
    return run, recording


def refuse_brief(found: Comparison) -> None:
    """Refuse a program that ended too early to tell its speed, where the other one does not end.

    Raises:
        FlatoutError: so it is, or there is no unit that both programs have.
    """
    unit = common_unit(*found.runs)
    for side in (0, 1):
        run, others = found.runs[side][-1], found.runs[1 - side]
        brief = run.ended and run.counted_s < SHORTEST_COUNT_S
        if unit != WALL and brief and not all(other.ended for other in others):
            raise FlatoutError(
                f"{shlex.join(found.commands[side])} ended after {run.seconds:.1f} s, with "
                f"{run.counted_s:.1f} s of counted work: too little to tell its speed."
            )


def _last_line(file: Any) -> str:
    """The last line that a program wrote to its standard error."""
    file.seek(max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0))
    lines = file.read().decode(errors="replace").strip().splitlines()
    return one_line(RuntimeError(lines[-1].strip())).removesuffix(".") if lines else ""


def _speed(run: Run, count: str) -> str:
    """A run's speed in words."""
    unit = next((unit for unit in UNITS if unit in run.rates), None)
    if unit is None:
        return "nothing was counted"
    if unit == WALL:
        return f"{1 / run.rates[WALL]:.1f} s"
    shown = count_words(count) if unit == CALLS else unit
    return f"{speed_words(run.rates[unit])} {shown} per second"


def _digests(commands: Sequence[Sequence[str]]) -> dict[str, str]:
    """A digest of each file that the command lines name: a changed program is another one."""
    digests = {}
    for word in {word for command in commands for word in command[1:]}:
        with suppress(OSError, ValueError):
            path = Path(word)
            if path.is_file() and path.stat().st_size <= evidence.MOST_BYTES:
                digests[word] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return digests


def _continued(asked: Comparison, file: Path) -> Comparison:
    """The comparison of a saved file, if it is the one that is asked for.

    Raises:
        UsageError: the file holds something else.
    """
    try:
        values = documents.read_json(file, limit=evidence.MOST_BYTES)
        saved = Comparison.from_json(values.pop("against"))
        processes = values.pop("processes")
        values.pop("flatout_evidence")
    except (OSError, AttributeError, LookupError, TypeError, ValueError):
        raise UsageError(
            f"--save {file} is there already and holds no comparison; name another file."
        ) from None
    if (saved.commands, saved.count) != (asked.commands, asked.count):
        first, second = map(shlex.join, saved.commands)
        raise UsageError(
            f"--save {file} holds another comparison ({first}; {second}); name another file."
        )
    if saved.files != asked.files:
        say(f"the programs have changed since {file} was written: its runs do not count.")
        return asked
    saved.recording = values, processes
    say(f"{file} has {len(saved.runs[0])} and {len(saved.runs[1])} runs already")
    return saved


def _save(found: Comparison, file: Path) -> None:
    """Write the runs and the first one's evidence, in place of an earlier file once all is there.

    Raises:
        FlatoutError: the file cannot be written.
    """
    assert found.recording is not None
    meta, processes = found.recording
    evidence.save(file, {**meta, "against": found.as_json()}, processes)


def _interrupt(signum: int, frame: object) -> None:
    """Raise `Interrupt`, so that the program that runs is ended, too."""
    raise Interrupt(signum)
