"""`flatout explain`: of a run folder, of a program to run, of one that runs, of saved evidence."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout import documents, output_file
from flatout.cli.explain_arguments import (
    MINUTES,
    ExplainArguments,
    check,
    kind_of,
    run_of,
    seconds_of,
)
from flatout.cli.flags import existing, parse, take_all, take_file
from flatout.errors import FlatoutError, UsageError, damage, one_line
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
    for flag in ("--json", "--html", "--save"):
        take_file(argv, flag)  # refuses one without a file
    asked = replace(parse(ExplainArguments(), "flatout explain", argv), phase=tuple(phases))
    path = None if asked.path is None else existing(asked.path)
    kind = "" if path is None else kind_of(path)
    check(asked, path, kind, command)
    if command and asked.against is not None:
        return _compare(command, asked.against, asked)
    if command:
        return _program(command, asked)
    if asked.pid is not None:
        from flatout.explain.program.spy import record_pid

        _report(_diagnosed(record_pid(asked.pid, seconds_of(asked)), asked), asked, stderr=True)
    elif path is not None and kind == "run":
        _run(run_of(path) or path, asked)
    elif path is not None and kind == "trace":
        _report(_traced(path), asked)
    elif path is not None:
        diagnosis, comparison = _saved(path, asked.phase)
        _report(diagnosis, asked, stderr=True, comparison=comparison)
    return 0


def _traced(path: Path) -> Diagnosis:
    """Diagnose what a profiler has recorded."""
    from flatout.explain.trace.diagnose import diagnose
    from flatout.explain.trace.load import load

    traces = load(path)
    try:
        found = diagnose(traces, str(path))
        found.check()
    except (ArithmeticError, LookupError, ValueError) as error:
        raise FlatoutError(f"{path} is a damaged trace ({damage(error)}).") from None
    return found


def _run(path: Path, asked: ExplainArguments) -> None:
    """Explain a run's folder on stdout and in the files that were asked for."""
    from rich.console import Console

    from flatout.explain.own.runs import diagnose_evidence, read_run
    from flatout.fleet.trial import show, try_first
    from flatout.storage.span_records import DEVICES, SPANS
    from flatout.storage.trust import Consent

    evidence = read_run(path)
    evidence = replace(evidence, plan=_plan(path, asked))
    diagnosis = diagnose_evidence(evidence)
    try:
        diagnosis.check()
    except ValueError as error:
        raise FlatoutError(
            f"{path} cannot be explained: its {SPANS} or {DEVICES} is damaged "
            f"({one_line(error)[:200]})."
        ) from None
    if asked.save is not None:
        _write(asked.save, evidence.as_json())
    _report(diagnosis, asked)
    if asked.try_:
        console = Console()
        outcome = try_first(path, diagnosis, console, Consent(trust=asked.trust))
        show(outcome, console)
        if asked.json is not None:
            _write(asked.json, diagnosis.as_json() | {"trial": outcome.as_json()})


def _plan(path: Path, asked: ExplainArguments) -> Answer | None:
    """Return planning's measurements of a run on this machine: made now, or before."""
    from flatout.hardware.inventory import inventory
    from flatout.run import auto
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
        found = auto.measured(asks, config.run.placement, inventory(), MEASURE_S)
        for note in found.notes:  # what could not be measured
            say(note)
        return found
    with suppress(FlatoutError):  # of others' code not even the file's time is looked at
        return auto.recalled(load_config(path, consent), inventory())
    return None


def _saved(path: Path, phases: Sequence[str]) -> tuple[Diagnosis, Comparison | None]:
    """Diagnose saved evidence of a program or a run, with more functions whose phase is given;
    also return its comparison, if it has one."""
    from flatout.explain.own import runs
    from flatout.explain.program import diagnose, evidence

    try:
        values = documents.read_json(path, limit=evidence.MOST_BYTES)
    except (OSError, ValueError) as error:
        raise FlatoutError(
            f"{path} is not evidence that flatout explain --save wrote: {one_line(error)}."
        ) from None
    parts = dict(values) if isinstance(values, dict) else {}  # `from_json` takes its parts out
    try:
        if parts.get("kind") == "run":
            found = runs.diagnose_evidence(runs.Evidence.from_json(values))
        else:
            read = evidence.from_json(values, path)
            read.phases = tuple(dict.fromkeys((*read.phases, *phases)))
            found = diagnose.diagnose(read)
        found.check()
        return found, _comparison(path, parts)
    except FlatoutError as error:
        if str(path) in str(error):
            raise
        raise FlatoutError(f"{path}: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise FlatoutError(
            f"{path} is damaged evidence ({damage(error)}); record it again."
        ) from None


def _program(command: Sequence[str], asked: ExplainArguments) -> int:
    """Run a program; its own output has stdout, the report goes to stderr."""
    from flatout.explain.program.attach import record

    def observed(recording: Recording) -> None:
        try:
            _report(_diagnosed(recording, asked), asked, stderr=True)
        except FlatoutError as error:
            say(error)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # The program goes on, and keeps its exit code.
            say(f"no report can be made: the recording is damaged ({damage(error)}).")

    return record(command, seconds_of(asked), observed, stop=asked.stop, profiled=asked.record)


def _compare(command: list[str], against: str, asked: ExplainArguments) -> int:
    """Run a program and another one in turns; the report is of the first, then of both."""
    from flatout.explain.against import rounds
    from flatout.explain.program.diagnose import diagnose
    from flatout.explain.program.evidence import build

    commands = command, rounds.command_of(against)
    rounds.check(commands, asked.count or "")
    save = None if asked.save is None else Path(asked.save)
    minutes = MINUTES if asked.minutes is None else asked.minutes
    found = rounds.compare(commands, asked.seconds, minutes, asked.count or "", save)
    assert found.recording is not None
    diagnosis = diagnose(build(*found.recording))
    _report(diagnosis, asked, stderr=True, comparison=found)
    return 0


def _comparison(path: Path, values: dict[str, Any]) -> Comparison | None:
    """Return the comparison in saved evidence, or None."""
    from flatout.explain.against.rounds import Comparison

    if "against" not in values:
        return None
    try:
        found = Comparison.from_json(values["against"])
        _ = found.outcome  # which impossible figures make fail
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise FlatoutError(
            f"{path} holds a damaged comparison ({damage(error)}); measure it again."
        ) from None
    return found


def _diagnosed(recording: Recording, asked: ExplainArguments) -> Diagnosis:
    from flatout.explain.program.diagnose import diagnose
    from flatout.explain.program.evidence import build, save

    if asked.phase:
        recording = recording[0] | {"phases": list(asked.phase)}, recording[1]
    if asked.save is not None:
        try:
            save(Path(asked.save), *recording)
        except FlatoutError as error:
            say(error)
    built = build(*recording)
    if asked.record is None:
        return diagnose(built)
    from flatout.explain.program.recorded import join

    return join(diagnose(built), built, recording[1], asked.save)


def _report(
    diagnosis: Diagnosis,
    asked: ExplainArguments,
    stderr: bool = False,
    comparison: Comparison | None = None,
) -> None:
    """Print the diagnosis and the comparison with a second program, and write the files that were
    asked for."""
    from rich.console import Console

    from flatout.explain.report import show, show_lines

    console, compared, said = Console(stderr=stderr), list[str](), diagnosis.as_json()
    show(diagnosis, console)
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


def _write(file: str, values: dict[str, Any]) -> None:
    output_file.write(Path(file), json_text(values, indent=1) + "\n")
