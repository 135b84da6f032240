"""`flatout explain`: the command of `flatout_explain`, with run folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from flatout.errors import FlatoutError, UsageError
from flatout.output import say
from flatout_explain.cli import command
from flatout_explain.cli.arguments import MEASURED, USAGE, ExplainArguments
from flatout_explain.cli.parsing import flag

if TYPE_CHECKING:
    from flatout.planning.answer import Answer
    from flatout_explain.diagnosis import Diagnosis

MEASURE_S = 20.0
"""Seconds for ``--measure``, the same as for `flatout plan`."""


@dataclass(frozen=True)
class RunArguments(ExplainArguments):
    """Find out why the GPU or the CPU is idle, and what to change where."""

    usage: ClassVar[tuple[str, ...]] = ("RUN_DIR", *USAGE)

    path: str | None = flag(
        None,
        "A run's folder; a trace of PyTorch's, JAX's or TensorFlow's profiler, or a folder of "
        "them; or a file of saved evidence.",
        "PATH",
        word=True,
    )
    try_: bool = flag(
        False,
        "Run folders only: apply the first remedy that is a setting, and measure what it gains.",
    )
    measure: bool = flag(
        False,
        "Of a run's folder: first measure the parts of this run here, for about 20 s, and save "
        f"that. Of a program, with --twice: {MEASURED}",
    )
    trust: bool = flag(
        False,
        "With --try or --measure: run the code that the folder names, although another user "
        "created it.",
    )

    def check_runs(self, kind: str, command: Sequence[str]) -> None:
        """Refuse flags for run folders where none is explained."""
        if self.try_ and kind != "run":
            raise UsageError("--try is for run folders: flatout explain RUN_DIR --try.")
        if self.measure and kind != "run" and not command:
            raise UsageError(
                "--measure is for run folders and for programs that explain starts: flatout "
                "explain RUN_DIR --measure, or flatout explain --measure --twice -- python "
                "script.py."
            )


def explain(argv: list[str]) -> int:
    """Run ``flatout explain`` with what follows on the command line; return the exit code."""
    return command.explain(argv, RunFolders())


class RunFolders(command.Runs):
    """Run folders as evidence for `flatout_explain`."""

    arguments = RunArguments

    def explain(self, path: Path, asked: RunArguments) -> Diagnosis:
        """Explain a run's folder on stdout and in the files that were asked for."""
        from rich.console import Console

        from flatout.cli.changed_command import given_in_python, repeatable, with_commands
        from flatout.explain.runs import diagnose_evidence, read_run
        from flatout.measurements.trial import show, try_first
        from flatout.storage.trust import Consent

        evidence = read_run(path)
        evidence = replace(
            evidence, plan=_plan(path, asked), repeatable=repeatable(path),
            in_python=given_in_python(path),
        )  # fmt: skip
        found = diagnose_evidence(evidence)
        diagnosis = with_commands(found, evidence)
        if asked.save is not None:
            command.write_json(asked.save, evidence.as_json())
        command.report(diagnosis, asked, command_lines=self.command_lines)
        if asked.try_:
            console = Console()
            outcome = try_first(path, found, console, Consent(trust=asked.trust))
            show(outcome, console)
            if asked.json is not None:
                command.write_json(asked.json, diagnosis.as_json() | {"trial": outcome.as_json()})
        return diagnosis

    def diagnose(self, evidence: Mapping[str, Any]) -> Diagnosis:
        """Diagnose saved evidence of a run."""
        from flatout.cli.changed_command import with_commands
        from flatout.explain import runs
        from flatout.storage.trust import reaching_of

        read = runs.Evidence.from_json(dict(evidence))
        diagnosis = runs.diagnose_evidence(read)
        # The file may be another user's: a command with code that it names is not shown.
        shown = read.repeatable and not reaching_of(read.config)
        return with_commands(diagnosis, replace(read, repeatable=shown))

    def command_lines(self, command: str, width: int) -> list[str]:
        """Break a command to train into lines that a shell reads as one."""
        from flatout.run import display

        return display.command_lines(command, width)


def _plan(path: Path, asked: RunArguments) -> Answer | None:
    """Return planning's measurements of a run on this machine, new or saved ones."""
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
        asks, *_ = auto.asked_about(config)
        found = planner.measured(asks, config.run.placement, inventory(), MEASURE_S)
        for note in found.notes:  # what could not be measured
            say(note)
        return found
    with suppress(FlatoutError):  # of others' code not even the file's time is looked at
        return auto.recalled(load_config(path, consent), inventory())
    return None
