"""The program against itself with a remedy that needs no change of its source (`--measure`)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from flatout_explain.against.outcome import Outcome, pair_words, unit_words
from flatout_explain.against.rounds import Comparison
from flatout_explain.diagnosis import Diagnosis, Finding, MeasuredGain
from flatout_explain.errors import FlatoutError
from flatout_explain.program.command_line import assignments, env_words

THREADS = "OMP_NUM_THREADS"


class Tried(NamedTuple):
    """A finding whose remedy is tried."""

    finding: Finding
    change: str  # the variables or the flag, as one types them
    command: list[str]  # the program's command line with that change


def first(diagnosis: Diagnosis, command: Sequence[str], flag: Sequence[str]) -> Tried:
    """Return the first finding whose remedy is another start of the program.

    A remedy counts only if it changes something: a variable that the environment has already with
    this value does not.

    Args:
        command: the program's command line.
        flag: the words that set how many processes load its data; none if they are unknown.

    Raises:
        FlatoutError: there is none.
    """
    if diagnosis.part:
        raise FlatoutError(
            "--measure: nothing is measured, because only a part of what the program does was "
            f"seen ({diagnosis.part}), and nothing is proposed: raise --seconds."
        )
    unknown = None
    for finding in diagnosis.findings:
        if finding.trial is None:
            continue
        if finding.trial.processes is None:
            if changed := [each for each in finding.trial.variables if _changes(each, command)]:
                words = env_words(command)  # of several values for a variable, the last one counts
                start = [*(command[:words] or ["env"]), *changed, *command[words:]]
                return Tried(finding, shlex.join(changed), start)
        elif flag:
            return Tried(finding, shlex.join(flag), [*command, *flag])
        else:
            unknown = unknown or finding.trial.processes
    if unknown is not None:
        raise FlatoutError(
            f"--measure: nothing is measured, because the remedy is to load data in {unknown} "
            "processes, and the program's flag for that is unknown: name it with "
            f'--measure-flag="--workers {unknown}".'
        )
    raise FlatoutError(
        "--measure: nothing is measured, because no remedy is an environment variable or a flag "
        "of the command."
    )


def with_gain(diagnosis: Diagnosis, tried: Tried, found: Comparison) -> Diagnosis:
    """Return the diagnosis with the gain that was measured.

    Raises:
        FlatoutError: the program computes with other threads than the remedy says.
    """
    _refuse_own_threads(tried, found)
    outcome = found.outcome
    assert outcome is not None
    how = f"{unit_words(outcome, found.count)} with {tried.change}, {pair_words(outcome)}"
    how += _certainty(outcome)
    gain = MeasuredGain(outcome.gain, outcome.low, outcome.high, how)
    return replace(
        diagnosis,
        findings=tuple(
            replace(one, gain=gain) if one is tried.finding else one for one in diagnosis.findings
        ),
    )


def _refuse_own_threads(tried: Tried, found: Comparison) -> None:
    """Refuse a program on which the number of threads in its environment has no effect.

    Raises:
        FlatoutError: PyTorch has more threads in its processes than the remedy says.
    """
    for variable in tried.finding.trial.variables if tried.finding.trial else ():
        name, _, value = variable.partition("=")
        had = min(run.torch_threads for run in found.runs[1])
        if name == THREADS and had > int(value):
            raise FlatoutError(
                f"--measure: the remedy is not measured, because PyTorch has {had} threads with "
                f"{variable}, too: the program sets their number itself (torch.set_num_threads). "
                "Change that in a copy of the program, and compare it with --against."
            )


def _certainty(outcome: Outcome) -> str:
    """Return what follows where the gain is none, or is not known to be one."""
    if outcome.low is None:
        return ": too few for an interval"
    if outcome.same is None:
        return ": undecided; raise --minutes or --seconds"
    return ": no difference" if outcome.same else ""


def _changes(variable: str, command: Sequence[str]) -> bool:
    """Return whether a program with this command line does not have this variable with this
    value."""
    name, _, value = variable.partition("=")
    return assignments(command).get(name, os.environ.get(name)) != value
