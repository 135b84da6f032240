"""The arguments of the command, and the combinations that it refuses."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from flatout_explain import output_file
from flatout_explain.cli.parsing import flag, number, option, whole_number
from flatout_explain.errors import UsageError, writing
from flatout_explain.output import command_name
from flatout_explain.trace.load import is_trace, require_numpy

USAGE = (
    "[--seconds 60] -- python script.py ...", "--pid N", "TRACE", "EVIDENCE.json",
    "--diff BEFORE.json AFTER.json",
)  # fmt: skip
"""Ways to call the command, without its name."""

SECONDS = 60.0
"""Time for which a program is observed."""

MINUTES = 5.0
"""Time for ``--against``."""

MEASURED = (
    "once the program has ended, start it again as it was and with the first remedy that is an "
    "environment variable or a flag of its command, and measure the gain."
)
"""How ``--measure`` treats a program, for its help."""

PROFILE = ".speedscope.json"
"""The ending of the file with which ``--save`` writes a profile of the samples, not the evidence.
"""


@dataclass(frozen=True)
class ExplainArguments:
    """Find out why the GPU or the CPU is idle, and what to change where."""

    usage: ClassVar[tuple[str, ...]] = USAGE

    path: str | None = flag(
        None,
        "A trace of PyTorch's, JAX's or TensorFlow's profiler, or a folder of them; or a file of "
        "saved evidence.",
        "PATH",
        word=True,
    )
    seconds: float | None = flag(
        None,
        "How long a program is observed after its imports (60 s; with --against 10 s). This is "
        "extended, to at most four times as long, until two cycles of collecting and learning "
        "were seen. The program then runs to its end.",
        "SECONDS",
        type=number,
    )
    stop: bool = flag(False, "End the program (SIGTERM) once it is explained.")
    record: float | None = flag(
        None,
        "Programs only: let the program's own profiler (PyTorch's or JAX's) record for this many "
        "seconds, 0.1 to 20, once the imports are over, and report what it recorded, too.",
        "SECONDS",
        type=number,
    )
    pid: int | None = flag(
        None,
        "Observe a Python process that runs already (needs py-spy: pip install py-spy).",
        "PID",
        type=whole_number,
    )
    phase: tuple[str, ...] = flag(
        (),
        "Programs only, may be repeated: all time in a function counts as this phase, "
        "PHASE=MODULE:FUNCTION, such as env=train:collect or env=train:Maze.step.",
        "PHASE=MODULE:FUNCTION",
        "PHASE=MODULE:FUNCTION: --phase env=train:collect",
        repeat=True,
    )
    against: str | None = flag(
        None,
        'The command line of a second program, such as "python fixed.py": let both run in turns, '
        "and measure how much faster the second one is.",
        "COMMAND",
    )
    count: str | None = flag(
        None,
        "Programs only: count work, so that --against and --diff compare times for a unit of it: "
        "calls of a function (module:function), the sum of its argument "
        "(module:function(argument)), or steps of environments and optimisers (the word steps, "
        "and the default of --against).",
        "FUNCTION",
    )
    minutes: float | None = flag(
        None,
        "With --against, and with --measure of a program: no round begins that would end later "
        "(5).",
        "MINUTES",
        type=number,
    )
    json: str | None = flag(
        None, "Write verdict and findings to this JSON file.", "FILE", "a file: --json FILE"
    )
    fail_if: tuple[str, ...] = flag(
        (),
        "End with exit code 3 if the share of the time of a phase or a cause, in per cent, "
        'fulfils a condition: "env > 50". May be repeated; the exit code of a program that fails '
        "is kept.",
        "CONDITION",
        'a condition: --fail-if "env > 50"',
        repeat=True,
    )
    diff: tuple[str, ...] = flag(
        (),
        "Compare two files of saved evidence or of --json, BEFORE AFTER: which phases, causes and "
        "lines take more or less time.",
        "BEFORE AFTER",
        "two files: --diff BEFORE.json AFTER.json",
        count=2,
    )
    html: str | None = flag(
        None, "Write a report of one page to this HTML file.", "FILE", "a file: --html FILE"
    )
    save: str | None = flag(
        None,
        "Write the recorded evidence to this JSON file, to be diagnosed elsewhere; with the "
        "ending .speedscope.json, the samples as a profile for speedscope.app.",
        "FILE",
        "a file: --save FILE",
    )
    measure: bool = flag(
        False,
        f"Programs only, with --twice: {MEASURED}",
    )
    twice: bool = flag(
        False,
        "With --measure of a program: allow two copies of it to run at the same time, which write "
        "the same files.",
    )
    measure_flag: str | None = flag(
        None,
        "With --measure of a program: the flag and value with which it loads data in more "
        "processes, appended to its command if that is the remedy.",
        "FLAG",
        'a flag: --measure-flag="--workers 4"',
        dashes=True,
    )

    def check_runs(self, kind: str, command: Sequence[str]) -> None:
        """Refuse flags that are only for run folders. There are none of these flags.

        Args:
            kind: the kind of what is explained, see `kind_of`.
            command: the program to explain, if it is one.
        """


def check(asked: ExplainArguments, path: Path | None, kind: str, command: Sequence[str]) -> None:
    """Refuse impossible combinations before anything is started.

    Args:
        asked: the flags.
        path: the file or folder to explain, if it is one.
        kind: its kind, see `kind_of`.
        command: the program to explain, if it is one.
    """
    from flatout_explain.program.marks import FunctionPhase

    tool = command_name()
    if sum((path is not None, bool(command), asked.pid is not None, bool(asked.diff))) != 1:
        files = {"--json": asked.json, "--html": asked.html, "--save": asked.save}
        taken = [f"{flag} took {file} as its FILE" for flag, file in files.items() if file]
        if path is None and taken:
            raise UsageError(
                f"explain needs something to explain, and {taken[0]}: {tool} PATH "
                f"{taken[0].split()[0]} FILE."
            )
        *most, last = (f"{tool} {words}" for words in asked.usage)
        raise UsageError(f"explain needs one thing to explain: {', '.join(most)}, or {last}.")
    for word in asked.phase:
        FunctionPhase.parse(word)
    if asked.phase and (kind in ("run", "trace") or asked.against is not None):
        raise UsageError(
            f"--phase is for programs, without --against: {tool} --phase "
            "env=train:collect -- python train.py."
        )
    if asked.against is not None and not command:
        raise UsageError(
            f"--against compares two programs: {tool} --against "
            '"python fixed.py" -- python script.py.'
        )
    measured = asked.measure and bool(command)
    if asked.minutes is not None and asked.against is None and not measured:
        raise UsageError(
            "--minutes is for --against, and for --measure of a program: it says how long two "
            "programs are compared."
        )
    if asked.count is not None:
        if not command:
            raise UsageError(
                f"--count is for programs that explain starts: {tool} --count steps -- "
                "python script.py."
            )
        from flatout_explain.against.rounds import check_count

        check_count(count_of(asked) or "")
    if asked.diff:
        _check_diff(asked)
    if asked.fail_if:
        from flatout_explain.conditions import Condition

        for text in asked.fail_if:
            Condition.parse(text)
    if asked.minutes is not None and not 0 < asked.minutes <= 1440:
        raise UsageError(f"--minutes {asked.minutes:g} is impossible: it lies between 0 and 1440.")
    if asked.seconds is not None and not 0.5 <= asked.seconds <= 86400:
        raise UsageError(
            f"--seconds {asked.seconds:g} is impossible: it lies between 0.5 and 86400."
        )
    run = kind == "run"
    asked.check_runs(kind, command)
    if asked.measure and not run:
        _check_measure(asked, command)
    flagged = asked.measure_flag is not None
    for name, given in (("--twice", asked.twice), ("--measure-flag", flagged)):
        if given and not measured:
            raise UsageError(
                f"{name} is for --measure of a program: {tool} --measure --twice -- python "
                "script.py."
            )
    if asked.record is not None and not command:
        raise UsageError(
            f"--record is for programs that explain starts: {tool} --record 2 -- python script.py."
        )
    if asked.record is not None and asked.against is not None:
        raise UsageError("--record and --against cannot be combined.")
    if asked.record is not None:
        require_numpy("--record")
    if asked.record is not None and not 0.1 <= asked.record <= min(20.0, seconds_of(asked) / 2):
        raise UsageError(
            f"--record {asked.record:g} is impossible: it lies between 0.1 and 20, and is at most "
            f"half of --seconds ({seconds_of(asked):g})."
        )
    if asked.stop and not command:
        raise UsageError(f"--stop is for programs that explain starts: {tool} --stop -- ...")
    profile = asked.save is not None and asked.save.endswith(PROFILE)
    if profile and (run or kind == "trace" or asked.against is not None):
        raise UsageError(
            f"--save {asked.save}: a speedscope profile is made of samples of a program: {tool} "
            f"--save FILE{PROFILE} -- python script.py, or of its saved evidence."
        )
    if asked.save and path is not None and not run and not profile:
        what = "a profiler's trace" if kind == "trace" else "saved evidence"
        raise UsageError(f"--save: {path} is {what} already.")
    read = {Path(one).resolve(): f"--diff {one}" for one in asked.diff}
    for name, file in (("json", asked.json), ("html", asked.html), ("save", asked.save)):
        if file is not None:
            with writing(file):
                _check_file(name, Path(file), path)
                output_file.check_writable(Path(file))
            other = read.setdefault(Path(file).resolve(), f"--{name} {file}")
            ordinary = not Path(file).exists() or Path(file).is_file()  # /dev/null may be both
            if other != (this := f"--{name} {file}") and ordinary:
                raise UsageError(f"{this} would replace that of {other}; name another file.")


def _check_measure(asked: ExplainArguments, command: Sequence[str]) -> None:
    """Refuse to measure a program that cannot be measured, or that nobody said may run twice."""
    from flatout_explain.against import rounds

    if not command:
        raise UsageError(
            f"--measure is for programs that explain starts: {command_name()} --measure --twice -- "
            "python script.py."
        )
    if asked.against is not None:
        raise UsageError("--measure and --against cannot be combined.")
    if not asked.twice:
        raise UsageError(
            f"--measure starts {shlex.join(command)} again once it has ended, two copies at the "
            "same time, and both write its results again: add --twice if that does no harm."
        )
    rounds.check([command], count_of(asked) or "")
    flag_words(asked)


def flag_words(asked: ExplainArguments) -> list[str]:
    """Return the words of ``--measure-flag``; none without it.

    Raises:
        UsageError: they cannot be read.
    """
    if asked.measure_flag is None:
        return []
    with suppress(ValueError):
        if words := shlex.split(asked.measure_flag):
            return words
    raise UsageError(
        f"--measure-flag {asked.measure_flag!r} is no flag: write it as on a command line, "
        '--measure-flag="--workers 4".'
    )


def _check_file(flag: str, file: Path, path: Path | None) -> None:
    """Refuse a file that is to be written in an impossible place, or in place of the evidence."""
    if not (parent := file.resolve().parent).is_dir():
        raise UsageError(f"--{flag} {file}: the folder {parent} does not exist.")
    if file.is_dir():
        raise UsageError(f"--{flag} {file} is a folder; name a file.")
    if path is not None and file.resolve() == path.resolve():
        raise UsageError(f"--{flag} {file} is the evidence itself; name another file.")
    if path is not None and _within(file, path):
        raise UsageError(f"--{flag} {file} is a file of {path}; name another file.")


def _check_diff(asked: ExplainArguments) -> None:
    """Refuse what makes no sense with two files to compare."""
    if len(asked.diff) != 2:
        raise UsageError(
            f"--diff compares two files: {command_name()} --diff BEFORE.json AFTER.json."
        )
    for spec in fields(asked):
        if spec.name not in ("diff", "json") and getattr(asked, spec.name):
            raise UsageError(
                f"{option(spec.name)} cannot be combined with --diff, which takes only --json."
            )


def count_of(asked: ExplainArguments) -> str | None:
    """The function whose calls are to be counted; empty for steps, None if nothing is counted."""
    return "" if asked.count == "steps" else asked.count


def _within(file: Path, folder: Path) -> bool:
    """Whether it is an existing file of a folder."""
    return folder.is_dir() and file.exists() and file.resolve().is_relative_to(folder.resolve())


def kind_of(path: Path) -> str:
    """Return the kind of a file or folder: ``run``, ``trace`` (of a profiler) or ``evidence``.

    Raises:
        UsageError: it is neither an ordinary file nor a folder.
    """
    if not path.is_dir() and not path.is_file():
        raise UsageError(f"{path} is no ordinary file and no folder.")
    if run_of(path) is not None:
        return "run"
    if is_trace(path):
        return "trace"
    return "run" if path.is_dir() else "evidence"


def run_of(path: Path) -> Path | None:
    """The folder of a run, or of the run whose trace (``train --trace``) a file is."""
    folder = path.parent if path.name == "trace.json" else path
    return folder if (folder / "config.json").is_file() else None


def seconds_of(asked: ExplainArguments) -> float:
    """How long a program is observed, in seconds."""
    return SECONDS if asked.seconds is None else asked.seconds
