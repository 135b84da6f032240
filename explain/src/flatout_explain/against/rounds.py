"""Compares two programs until their ratio of speeds is known well enough, or time is up."""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from flatout_explain import documents
from flatout_explain.against import turns
from flatout_explain.against.outcome import Outcome, common_unit, count_words, outcome, speed_words
from flatout_explain.against.rates import (
    CALLS,
    WALL,
    Positive,
    Run,
    course,
    observed,
    turn_ratios,
    uncounted_words,
)
from flatout_explain.errors import FlatoutError, Interrupt, UsageError, with_full_stop
from flatout_explain.output import say
from flatout_explain.program import attach, evidence
from flatout_explain.program.command_line import blocking_flags
from flatout_explain.program.evidence import Recording
from flatout_explain.program.facts import Facts, facts_of

COUNTABLE = re.compile(r"[\w.]+:[\w.]+(\(\w+\))?")

ENDING = (*Interrupt.signals, *filter(None, [getattr(signal, "SIGQUIT", None)]))  # not on Windows
"""Signals that end the programs, which have process groups of their own."""

SECONDS = 10.0
"""How long each program runs in a round, unless one round would not fit."""
SHORTEST_S = 2.0
START_S = 6.0
"""Time that a program takes in addition: to start, to write, and to end."""
END_S = 8.0
"""Time to write and to end, of both programs, after a last turn of each."""
SHORTEST_COUNT_S = 1.0
"""Minimum time of counted work of a program that ends by itself, unless the other one ends too."""


class Observed(NamedTuple):
    """One of the programs in a round."""

    recording: Recording
    facts: Facts
    edges: Sequence[float]  # times at which its turns began and ended, in seconds on its clock


@dataclass
class Comparison:
    """Two programs, and their runs so far."""

    commands: tuple[list[str], list[str]]
    count: str = ""  # the function whose calls are counted, or empty
    files: dict[str, str] = field(default_factory=dict)  # digests of files in the command lines
    # of each program, one in each round
    runs: tuple[list[Run], list[Run]] = field(default_factory=lambda: ([], []))
    # of each round, by unit, the ratios of the speeds in its turns; empty if they are unknown
    gains: list[dict[str, list[Positive]]] = field(default_factory=list)
    recording: Recording | None = None  # the evidence of the first program's first run

    @property
    def name(self) -> str:
        """The second program's command line."""
        return shlex.join(self.commands[1])

    @property
    def outcome(self) -> Outcome | None:
        """The outcome so far; None before the first round."""
        return outcome(*self.runs, self.gains) if all(self.runs) else None

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as it is saved, without the evidence."""
        return asdict(replace(self, recording=None))

    @staticmethod
    def from_json(values: Any) -> Comparison:
        """Return a saved comparison; raises `ValueError` if it is damaged."""
        found = msgspec.convert(values, Comparison)
        if not len(found.runs[0]) == len(found.runs[1]) == len(found.gains):
            raise ValueError("a round is incomplete")
        return found


def command_of(text: str) -> list[str]:
    """Return the words of the command line given to ``--against``.

    Raises:
        UsageError: it cannot be read, or names no program.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"--against {text!r} is not a command line: {with_full_stop(error)}"
        ) from None
    if not words:
        raise UsageError('--against needs a command line: --against "python fixed.py".')
    return words


def check_count(count: str) -> None:
    """Refuse what cannot be counted.

    Raises:
        UsageError: it is neither empty nor a function.
    """
    matched = COUNTABLE.fullmatch(count)
    words = re.split(r"[.:()]", count.removesuffix(")"))
    if count and not (matched and all(word.isidentifier() for word in words)):
        raise UsageError(
            f"--count {count!r} is not a function: write module:function, such as "
            "agent:Agent.learn or __main__:step, module:function(argument) to count the sum of an "
            "argument, or steps."
        )


def check(commands: Sequence[Sequence[str]], count: str) -> None:
    """Refuse what could not be measured before anything is started."""
    check_count(count)
    for command in commands:
        if shutil.which(command[0]) is None:
            raise UsageError(f"{command[0]} cannot be started: there is no such program.")
        if flags := blocking_flags(command):
            raise UsageError(
                f"{shlex.join(command)} cannot be counted: {' '.join(flags)} keeps Python from "
                "loading the probe."
            )


def compare(
    commands: tuple[list[str], list[str]], seconds: float | None, minutes: float, count: str,
    save: Path | None,
) -> Comparison:  # fmt: skip
    """Measure both programs, in rounds, until their ratio is known well enough or time is up.

    Args:
        seconds: how long each program runs in a round; None for `SECONDS`, or less if time is
            short.
        minutes: no round begins that would end later.
        count: the function whose calls are the unit of work, or empty.
        save: the file that keeps the finished rounds; those that are there already count.

    Raises:
        FlatoutError: a program failed, or their speeds cannot be compared.
    """
    began, limit = time.monotonic(), 60 * minutes
    found, facts = Comparison(commands, count, _digests(commands)), attach.machine(commands[0])
    if save is not None and save.exists():
        found = _continued(found, save, facts)
    if seconds is None:
        seconds = min(SECONDS, max(limit / 2 - START_S, SHORTEST_S))
    slowest = 2 * (seconds + START_S)
    # Two programs may not fit into a GPU's memory.
    in_turns, proven = turns.CAN_STOP and not facts["gpus"], False
    with attach.signals_handled(ENDING, _interrupt):
        while True:
            now = time.monotonic()
            done, left = len(found.gains), began + limit - now
            if (result := found.outcome) is not None and (result.narrow or left < slowest):
                return found
            order = (0, 1) if done % 2 == 0 else (1, 0)
            try:
                sides = _round(found, order, seconds, began + limit - END_S, facts, in_turns)
            except turns.FailedError:  # perhaps because the other one was there
                if proven or not in_turns:
                    raise
                in_turns = False
                continue
            proven = True
            _add(found, sides)
            slowest = max(slowest, time.monotonic() - now)
            if save is not None:
                _save(found, save)


def _round(
    found: Comparison, order: Sequence[int], seconds: float, limit: float,
    facts: dict[str, Any], in_turns: bool,
) -> dict[int, Observed]:  # fmt: skip
    """Observe both programs, in turns or one after the other, in this order.

    Raises:
        FlatoutError: a program has failed, or could not be observed.
    """
    seen: dict[int, Observed] = {}
    for group in [order] if in_turns else [[side] for side in order]:
        with ExitStack() as running:
            programs: list[turns.Program] = []
            for side in group:
                program = turns.Program(found.commands[side], found.count, facts)
                programs.append(running.enter_context(program))
                program.wait_for_imports()
            now = time.monotonic()
            turns.take_turns(programs, seconds, now + (limit - now) * len(group) / (2 - len(seen)))
            for side, program in zip(group, programs, strict=True):
                recording, evidence = program.finish()
                # Turns at other times are no pairs.
                seen[side] = Observed(
                    recording, facts_of(evidence), program.edges if in_turns else ()
                )
                if not seen[side].facts.ran and not evidence.finished:
                    raise FlatoutError(
                        f"{shlex.join(program.command)} was still importing modules after "
                        f"{evidence.ended - evidence.began:.0f} s, so that its speed is unknown: "
                        "raise --seconds."
                    )
    return seen


def _add(found: Comparison, sides: dict[int, Observed]) -> None:
    """Add a round's speeds.

    Raises:
        FlatoutError: nothing could be counted.
    """
    first, second = sides[0], sides[1]
    found.recording = found.recording or first.recording
    for side, one in sides.items():
        found.runs[side].append(_counted(found, side, one.facts))
    refuse_brief(found)
    unit = common_unit(*found.runs)
    for command, runs in zip(found.commands, found.runs, strict=True):
        say(f"{shlex.join(command)}: {_speed(runs[-1].rates[unit], unit, found.count)}")
    units = set(found.runs[0][-1].counted) & set(found.runs[1][-1].counted)
    found.gains.append({
        unit: turn_ratios(*(
            course(one.facts.evidence, one.facts.line, one.edges, unit) for one in (first, second)
        ))
        for unit in units
    })  # fmt: skip


def _counted(found: Comparison, side: int, facts: Facts) -> Run:
    """Return the result of a run; raise `FlatoutError` if nothing could be counted."""
    run = observed(facts)
    name = shlex.join(found.commands[side])
    if found.count and CALLS not in run.rates:
        lasted = f"ended after {run.seconds:.1f} s" if run.ended else f"ran {run.seconds:.0f} s"
        why = uncounted_words(facts.evidence) or "they were too few to tell a speed"
        raise FlatoutError(
            f"{name} {lasted} without calls of {found.count} that could be counted: {why}."
        )
    if run.ended and not run.rates:
        raise FlatoutError(
            f"{name} ended after {run.seconds:.1f} s, before anything was counted: let it run for "
            "longer."
        )
    return run


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
                f"{run.counted_s:.1f} s of counted work, too little to tell its speed: let it run "
                "for longer."
            )


def _speed(rate: float, unit: str, count: str) -> str:
    """Return a speed in words."""
    if unit == WALL:
        return f"{1 / rate:.1f} s"
    shown = count_words(count) if unit == CALLS else unit
    return f"{speed_words(rate)} {shown} per second"


def _digests(commands: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return a digest of each file that the command lines name, by which changes are noticed."""
    digests = {}
    for word in {word for command in commands for word in command[1:]}:
        with suppress(OSError, ValueError):
            path = Path(word)
            if path.is_file() and path.stat().st_size <= evidence.MOST_BYTES:
                digests[word] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return digests


def _continued(asked: Comparison, file: Path, facts: dict[str, Any]) -> Comparison:
    """Return the comparison in a saved file, if its programs are the given ones, and its machine
    has these facts.

    Raises:
        UsageError: the file holds something else.
    """
    try:
        values = documents.read_json(file, limit=evidence.MOST_BYTES)
        saved = Comparison.from_json(values.pop("against"))
        processes, machine = values.pop("processes"), values["machine"]
        values.pop("flatout_evidence")
        same = all(machine[name] == facts[name] for name in ("cpu", "cores", "gpus"))
    except (OSError, AttributeError, LookupError, TypeError, ValueError):
        raise UsageError(
            f"--save {file} exists and holds no comparison of two programs; name another file."
        ) from None
    if (saved.commands, saved.count) != (asked.commands, asked.count):
        first, second = map(shlex.join, saved.commands)
        raise UsageError(
            f"--save {file} holds a comparison of other programs ({first}; {second}); name another "
            "file."
        )
    if saved.files != asked.files:
        say(f"the programs have changed since {file} was written, so its runs are not used.")
        return asked
    if not same:
        say(
            f"{file} was written on another machine ({machine['cpu']}, {machine['cores']} cores), "
            "so its runs are not used."
        )
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
    """Raise `Interrupt`, so that the programs that run are ended, too; a second one is ignored."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise Interrupt(signum)
