"""`flatout explain`: of a run folder, of a program to run, of one that runs, of saved evidence.

`--diff` is in `flatout.cli.explain_diff`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout import output_file
from flatout.cli.explain_arguments import (
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
from flatout.cli.explain_saved import intact, read_saved
from flatout.cli.flags import existing, given_twice, parse, take_all, take_file
from flatout.errors import FlatoutError, UsageError, damage
from flatout.output import json_text, say

if TYPE_CHECKING:
    from flatout.explain.against.rounds import Comparison
    from flatout.explain.diagnosis import Diagnosis
    from flatout.explain.program.evidence import Recording
    from flatout.planning.answer import Answer

MEASURE_S = 20.0
"""Time for ``--measure``, as of `flatout plan`."""


def explain(argv: list[str]) -> int:
    """Run ``flatout explain`` with what follows on the command line; returns the exit code."""
    command: list[str] = []
    if "--" in argv:
        at = argv.index("--")
        argv, command = argv[:at], argv[at + 1 :]
        if not command:
            raise UsageError("nothing follows --: flatout explain -- python script.py ARGUMENTS.")
    phases, argv = take_all(argv, "--phase", 1, "PHASE=MODULE:FUNCTION: --phase env=train:collect")
    conditions, argv = take_all(argv, "--fail-if", 1, 'a condition: --fail-if "env > 50"')
    words = 'a flag: --measure-flag="--workers 4"'
    given, argv = take_all(argv, "--measure-flag", 1, words, flags=True)
    if len(given) > 1:
        raise UsageError(given_twice("--measure-flag"))
    compared, rest = take_all(argv, "--diff", 2, "two files: --diff BEFORE.json AFTER.json")
    if len(compared) != 2 and rest != argv:
        raise UsageError("--diff needs two files: flatout explain --diff BEFORE.json AFTER.json.")
    argv = rest
    for flag in ("--json", "--html", "--save"):
        take_file(argv, flag)  # refuses one without a file
    asked = replace(
        parse(ExplainArguments(), "flatout explain", argv),
        phase=tuple(phases), fail_if=tuple(conditions), diff=tuple(compared),
        measure_flag=given[0] if given else None,
    )  # fmt: skip
    path = None if asked.path is None else existing(asked.path)
    kind = "" if path is None else kind_of(path)
    check(asked, path, kind, command)
    if asked.diff:
        from flatout.cli.explain_diff import compare

        before, after = asked.diff
        compare(before, after, asked.json)
        return 0
    if command and asked.against is not None:
        return _compare(command, asked.against, asked)
    if command:
        return _program(command, asked)
    if asked.pid is not None:
        from flatout.explain.program.spy import record_pid

        diagnosis = _diagnosed(record_pid(asked.pid, seconds_of(asked)), asked)
        _report(diagnosis, asked, stderr=True)
    elif path is not None and kind == "run":
        diagnosis = _run(run_of(path) or path, asked)
    elif path is not None and kind == "trace":
        diagnosis = _traced(path)
        _report(diagnosis, asked)
    else:
        assert path is not None
        diagnosis, comparison = read_saved(path, asked.phase, asked.save)
        _report(diagnosis, asked, stderr=True, comparison=comparison)
    return _judge(diagnosis, asked)


def _traced(path: Path) -> Diagnosis:
    """Diagnose what a profiler has recorded."""
    from flatout.explain.trace.diagnose import diagnose
    from flatout.explain.trace.load import load

    traces = load(path)
    with intact(f"{path} is a damaged trace", "record it again"):
        found = diagnose(traces, str(path))
        found.check()
    return found


def _run(path: Path, asked: ExplainArguments) -> Diagnosis:
    """Explain a run's folder on stdout and in the files that were asked for."""
    from rich.console import Console

    from flatout.explain.own.runs import diagnose_evidence, read_run
    from flatout.fleet.trial import show, try_first
    from flatout.storage.trust import Consent

    evidence = read_run(path)
    evidence = replace(evidence, plan=_plan(path, asked))
    diagnosis = diagnose_evidence(evidence)
    if asked.save is not None:
        _write(asked.save, evidence.as_json())
    _report(diagnosis, asked)
    if asked.try_:
        console = Console()
        outcome = try_first(path, diagnosis, console, Consent(trust=asked.trust))
        show(outcome, console)
        if asked.json is not None:
            _write(asked.json, diagnosis.as_json() | {"trial": outcome.as_json()})
    return diagnosis


def _plan(path: Path, asked: ExplainArguments) -> Answer | None:
    """Return planning's measurements of a run on this machine: made now, or before."""
    from flatout.hardware.inventory import inventory
    from flatout.run import auto, planner
    from flatout.storage.run_folder import load_config
    from flatout.storage.trust import Consent, import_here

    consent = Consent(trust=asked.trust)
    if asked.measure:
        config = load_config(path, consent)  # its environment will be called
        if not config.hyper.acts:
            raise UsageError(f"--measure: {config.algorithm} has no environment to measure.")
        import_here(config.env.env, config.algorithm, folder=path)
        say(f"measuring the parts of this run for about {MEASURE_S:.0f} s")
        asks, *_ = auto.asked_about(config)
        found = planner.measured(asks, config.run.placement, inventory(), MEASURE_S)
        for note in found.notes:  # what could not be measured
            say(note)
        return found
    with suppress(FlatoutError):  # of others' code not even the file's time is looked at
        return auto.recalled(load_config(path, consent), inventory())
    return None


def _program(command: Sequence[str], asked: ExplainArguments) -> int:
    """Run a program; its own output has stdout, the report goes to stderr."""
    from flatout.explain.program.attach import record

    failed, finished = 0, True
    seen: list[Diagnosis] = []

    def observed(recording: Recording) -> None:
        nonlocal failed, finished
        finished = bool(recording[0]["finished"])
        try:
            diagnosis = _diagnosed(recording, asked)
            with _said():
                _report(diagnosis, asked, stderr=True)
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
    from flatout.explain.against import rounds, trial

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
        _report(gained, asked, stderr=True, comparison=found, again=True)


def _compare(command: list[str], against: str, asked: ExplainArguments) -> int:
    """Run a program and another one in turns; the report is of the first, then of both."""
    from flatout.explain.against import rounds
    from flatout.explain.program.diagnose import diagnose
    from flatout.explain.program.evidence import build

    commands = command, rounds.command_of(against)
    count = count_of(asked) or ""
    rounds.check(commands, count)
    save = None if asked.save is None else Path(asked.save)
    minutes = MINUTES if asked.minutes is None else asked.minutes
    found = rounds.compare(commands, asked.seconds, minutes, count, save)
    assert found.recording is not None
    diagnosis = diagnose(build(*found.recording))
    _report(diagnosis, asked, stderr=True, comparison=found)
    return _judge(diagnosis, asked)


def _diagnosed(recording: Recording, asked: ExplainArguments) -> Diagnosis:
    from flatout.explain.program import speedscope
    from flatout.explain.program.diagnose import diagnosis_of
    from flatout.explain.program.evidence import build, save
    from flatout.explain.program.facts import facts_of

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
    from flatout.explain.program.recorded import join

    return join(diagnosis_of(facts), facts, recording[1], asked.save)


@contextmanager
def _said() -> Iterator[None]:
    """Print why a file cannot be written or a gain is unknown, and continue."""
    try:
        yield
    except FlatoutError as error:
        say(error)


def _report(
    diagnosis: Diagnosis,
    asked: ExplainArguments,
    stderr: bool = False,
    comparison: Comparison | None = None,
    again: bool = False,
) -> None:
    """Print the diagnosis and the comparison with a second program, and write the files that were
    asked for.

    Args:
        again: of the diagnosis, which was printed before, only print what to try.
    """
    from rich.console import Console

    from flatout.explain.report import show, show_advice, show_lines

    console, compared, said = Console(stderr=stderr), list[str](), diagnosis.as_json()
    (show_advice if again else show)(diagnosis, console)
    if comparison is not None and (outcome := comparison.outcome) is not None:
        from flatout.explain.against.outcome import lines

        compared = lines(outcome, comparison.name, comparison.count)
        show_lines("AGAINST", compared, console)
        about = {"command": comparison.name, "count": comparison.count or None}
        said["against"] = about | outcome.as_json()
    if asked.html is not None:
        from flatout.explain.html import write

        write(diagnosis, Path(asked.html), compared)
    if asked.json is not None:
        _write(asked.json, said)


def _judge(diagnosis: Diagnosis, asked: ExplainArguments) -> int:
    """Print which conditions hold or cannot be judged; return `conditions.CODE` if one holds."""
    from flatout.explain.conditions import CODE, Condition

    failed = 0
    for text in asked.fail_if:
        holds, words = Condition.parse(text).verdict(diagnosis)
        if holds is not False:
            say(words)
        failed = CODE if holds else failed
    return failed


def _write(file: str, values: dict[str, Any]) -> None:
    output_file.write(Path(file), json_text(values, indent=1) + "\n")
