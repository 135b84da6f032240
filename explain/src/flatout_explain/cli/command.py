"""The command: explains a program to run, one that runs, a profiler's trace, or saved evidence.

`--diff` is in `flatout_explain.cli.diff`. `flatout explain` is this command with Flatout's run
folders added.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout_explain import output_file
from flatout_explain.cli.arguments import (
    MINUTES,
    PROFILE,
    ExplainArguments,
    check,
    count_of,
    flag_words,
    kind_of,
    run_of,
    seconds_of,
)
from flatout_explain.cli.parsing import existing, own_flags, parse
from flatout_explain.errors import FlatoutError, UsageError, damage
from flatout_explain.output import command_name, json_text, say

if TYPE_CHECKING:
    from flatout_explain.against.rounds import Comparison
    from flatout_explain.diagnosis import Diagnosis
    from flatout_explain.program.evidence import Recording
    from flatout_explain.report import CommandLines


class Runs:
    """Run folders, of which this tool alone knows only that Flatout has written them.

    Attributes:
        arguments: the command's flags.
    """

    arguments: type[ExplainArguments] = ExplainArguments

    def explain(self, path: Path, asked: Any) -> Diagnosis:
        """Explain a run's folder on stdout and in the files that were asked for."""
        if run_of(path) is None:
            raise UsageError(f"{path} holds no profiler's trace and is not a run folder.")
        raise UsageError(f"{path} is a run of Flatout: explain it with Flatout installed.")

    def diagnose(self, evidence: Mapping[str, Any]) -> Diagnosis:
        """Diagnose saved evidence of a run."""
        raise UsageError("evidence of a run of Flatout is explained with Flatout installed.")

    def command_lines(self, command: str, width: int) -> list[str]:
        """Break a command to train into lines that a shell reads as one."""
        return [command]


def explain(argv: list[str], runs: Runs) -> int:
    """Run the command with what follows it on the command line; return the exit code."""
    command: list[str] = []
    if "--" in argv:
        at = argv.index("--")
        argv, command = argv[:at], argv[at + 1 :]
        if not command:
            raise UsageError(f"nothing follows --: {command_name()} -- python script.py ARGUMENTS.")
    else:
        _refuse_program(argv, runs)
    asked = parse(runs.arguments, command_name(), argv)
    path = None if asked.path is None else existing(asked.path)
    kind = "" if path is None else kind_of(path)
    check(asked, path, kind, command)
    if asked.diff:
        from flatout_explain.cli.diff import compare

        before, after = asked.diff
        compare(before, after, asked.json, runs.diagnose)
        return 0
    if command and asked.against is not None:
        return _compare(command, asked.against, asked)
    if command:
        return _program(command, asked)
    if asked.pid is not None:
        from flatout_explain.program.spy import record_pid

        diagnosis = _diagnosed(record_pid(asked.pid, seconds_of(asked)), asked)
        report(diagnosis, asked, stderr=True)
    elif path is not None and kind == "run":
        diagnosis = runs.explain(run_of(path) or path, asked)
    elif path is not None and kind == "trace":
        diagnosis = _traced(path)
        report(diagnosis, asked)
    else:
        assert path is not None
        from flatout_explain.cli.saved import read_saved

        diagnosis, comparison = read_saved(path, runs.diagnose, asked.phase, asked.save)
        report(
            diagnosis, asked, stderr=True, comparison=comparison,
            command_lines=runs.command_lines,
        )  # fmt: skip
    return _judge(diagnosis, asked)


def _refuse_program(argv: Sequence[str], runs: Runs) -> None:
    """Refuse a program that does not follow ``--``, with the command to type."""
    taking = {flag.typed for flag in own_flags(runs.arguments) if flag.value and not flag.word}
    for at, word in enumerate(argv):
        script = word.endswith(".py")
        python = re.fullmatch(r"python[\d.]*", os.path.basename(word)) is not None
        if word.startswith("-") or not (script or python) or (at and argv[at - 1] in taking):
            continue
        program = [*(["python"] if script else []), *argv[at:]]
        raise UsageError(
            f"write -- before the program ({command_name()} "
            f"{shlex.join([*argv[:at], '--', *program])})."
        )


def _traced(path: Path) -> Diagnosis:
    """Diagnose what a profiler has recorded."""
    from flatout_explain.cli.saved import intact
    from flatout_explain.trace.load import load

    traces = load(path)  # which names what to install if NumPy is missing
    from flatout_explain.trace.diagnose import diagnose

    with intact(f"{path} is a damaged trace", "record it again"):
        found = diagnose(traces, str(path))
        found.check()
    return found


def _program(command: Sequence[str], asked: ExplainArguments) -> int:
    """Run a program; its own output has stdout, the report goes to stderr."""
    from flatout_explain.program.attach import record

    failed, finished = 0, True
    seen: list[Diagnosis] = []

    def observed(recording: Recording) -> None:
        nonlocal failed, finished
        finished = bool(recording[0]["finished"])
        try:
            diagnosis = _diagnosed(recording, asked)
            with _said():
                report(diagnosis, asked, stderr=True)
            seen.append(diagnosis)
            failed = _judge(diagnosis, asked)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # The program goes on, and keeps its exit code.
            say(f"no report can be made: the recording is damaged ({damage(error)}).")

    code = record(
        command, seconds_of(asked), observed, stop=asked.stop, profiled=asked.record,
        count=count_of(asked),
    )  # fmt: skip
    by_itself = finished or not asked.stop
    if asked.measure and seen:
        if code and by_itself:
            say(f"--measure: nothing is measured, because the program ended with exit code {code}.")
        else:
            _measure(seen[0], list(command), asked)
    return code if code and by_itself else failed or code


def _measure(diagnosis: Diagnosis, command: list[str], asked: ExplainArguments) -> None:
    """Measure what a program gains from the first remedy that needs no change of its source, and
    print that. If it cannot be measured, a sentence says why."""
    from flatout_explain.against import rounds, trial

    count, minutes = count_of(asked) or "", MINUTES if asked.minutes is None else asked.minutes
    with _said():
        tried = trial.first(diagnosis, command, flag_words(asked))
        say(
            f"measuring {tried.change}: two copies of the program run in turns, without output, "
            f"for at most about {minutes:g} min"
        )
        commands = command, tried.command
        rounds.check(commands, count)
        found = rounds.compare(commands, asked.seconds, minutes, count, None)
        gained = trial.with_gain(diagnosis, tried, found)
        report(gained, asked, stderr=True, comparison=found, again=True)


def _compare(command: list[str], against: str, asked: ExplainArguments) -> int:
    """Run a program and another one in turns; the report is of the first, then of both."""
    from flatout_explain.against import rounds
    from flatout_explain.program.diagnose import diagnose
    from flatout_explain.program.evidence import build

    commands = command, rounds.command_of(against)
    count = count_of(asked) or ""
    rounds.check(commands, count)
    save = None if asked.save is None else Path(asked.save)
    minutes = MINUTES if asked.minutes is None else asked.minutes
    found = rounds.compare(commands, asked.seconds, minutes, count, save)
    assert found.recording is not None
    diagnosis = diagnose(build(*found.recording))
    report(diagnosis, asked, stderr=True, comparison=found)
    return _judge(diagnosis, asked)


def _diagnosed(recording: Recording, asked: ExplainArguments) -> Diagnosis:
    from flatout_explain.program import speedscope
    from flatout_explain.program.diagnose import diagnosis_of
    from flatout_explain.program.evidence import build, save
    from flatout_explain.program.facts import facts_of

    if asked.phase:
        recording = recording[0] | {"phases": list(asked.phase)}, recording[1]
    profile = asked.save is not None and asked.save.endswith(PROFILE)
    with _said():
        if asked.save is not None and not profile:
            save(Path(asked.save), *recording)
    built = build(*recording)
    with _said():
        if asked.save is not None and profile:
            speedscope.write(Path(asked.save), built)
    facts = facts_of(built)
    if asked.record is None:
        return diagnosis_of(facts)
    from flatout_explain.program.recorded import join

    return join(diagnosis_of(facts), facts, recording[1], asked.save)


@contextmanager
def _said() -> Iterator[None]:
    """Print why a file cannot be written or a gain is unknown, and continue."""
    try:
        yield
    except FlatoutError as error:
        say(error)


def report(
    diagnosis: Diagnosis,
    asked: ExplainArguments,
    stderr: bool = False,
    comparison: Comparison | None = None,
    again: bool = False,
    command_lines: CommandLines | None = None,
) -> None:
    """Print the diagnosis and the comparison with a second program, and write the files that were
    asked for.

    Args:
        again: of the diagnosis, which was printed before, only print what to try.
        command_lines: breaks a command to train into lines; by default it stays on one.
    """
    from rich.console import Console

    from flatout_explain.report import one_line, show, show_advice, show_lines

    console, compared, said = Console(stderr=stderr), list[str](), diagnosis.as_json()
    (show_advice if again else show)(diagnosis, console, command_lines or one_line)
    if comparison is not None and (outcome := comparison.outcome) is not None:
        from flatout_explain.against.outcome import lines

        compared = lines(outcome, comparison.name, comparison.count)
        show_lines("AGAINST", compared, console)
        about = {"command": comparison.name, "count": comparison.count or None}
        said["against"] = about | outcome.as_json()
    if asked.html is not None:
        from flatout_explain.html import write

        write(diagnosis, Path(asked.html), compared)
    if asked.json is not None:
        write_json(asked.json, said)


def _judge(diagnosis: Diagnosis, asked: ExplainArguments) -> int:
    """Print which conditions hold or cannot be judged; return `conditions.CODE` if one holds."""
    from flatout_explain.conditions import CODE, Condition

    failed = 0
    for text in asked.fail_if:
        holds, words = Condition.parse(text).verdict(diagnosis)
        if holds is not False:
            say(words)
        failed = CODE if holds else failed
    return failed


def write_json(file: str, values: dict[str, Any]) -> None:
    """Write values to a JSON file."""
    output_file.write(Path(file), json_text(values, indent=1) + "\n")
