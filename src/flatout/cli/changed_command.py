"""The command that trains as a run did, but for some flags: what a report says to try.

It is made from the words of the command itself, or, where only a run's folder is known, from the
settings in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flatout.cli.arguments import (
    TrainArguments,
    read_settings,
    setting_flags,
    setting_values,
    settle,
)
from flatout.config.modules import PASSED
from flatout.config.schema import TrainConfig
from flatout.config.settings import build, revise
from flatout.errors import FlatoutError
from flatout.explain.runs import Evidence
from flatout.explain.settings import arguments, flags
from flatout.run.card import CARD, OURS
from flatout.storage import signing
from flatout.storage.run_folder import load_values
from flatout.storage.trust import reaching_of
from flatout_explain.cli.parsing import option, read
from flatout_explain.diagnosis import Diagnosis, Finding
from flatout_explain.files import nofollow

TRAIN = "flatout train"

ONCE: dict[str, Any] = {"run_dir": None, "quiet": False, "json": False, "trace": False}
"""Settings that a new run does not take over from another run's folder, with their defaults."""

MOST_CARD = 1 << 20
"""Maximum bytes of a model card."""


def changed_command(
    asked: TrainArguments, given: Mapping[str, Any], config: TrainConfig, setting: Sequence[str]
) -> list[str]:
    """Return the words of a command that trains as another one did, but for some flags, in a folder
    of its own.

    Args:
        asked, given: the command's own flags and the texts of its settings, see `read_settings`.
        config: the settings that resulted from them.
        setting: the flags that differ.
    """
    if asked.resume is not None:  # the settings are in that run's folder, not in the command
        return command_of_settings(config, setting)
    changes = read(setting_flags(), TRAIN, setting)
    words = [*TRAIN.split(), *filter(None, [asked.algorithm])]
    for flag, value in (
        ("--preset", asked.preset), ("--config", asked.config), ("--from", asked.from_),
    ):  # fmt: skip
        words += [] if value is None else [flag, value]
    words += ["--trust"] * asked.trust
    left_out = {"run_dir", *changes}
    left_out |= {"devices"} if "placement" in changes else set()  # it says where to learn
    for name, value in given.items():
        if name in left_out:
            continue
        if isinstance(value, bool):
            words.append(option(name) if value else option(name).replace("--", "--no-", 1))
            continue
        for text in value if isinstance(value, tuple) else (value,):
            words += [f"{option(name)}={text}"] if text.startswith("-") else [option(name), text]
    return [*words, *setting]


def command_of_settings(
    config: TrainConfig, setting: Sequence[str], parent: str | None = None
) -> list[str]:
    """Return the words of a command that trains with these settings, but for some flags, in a
    folder of its own.

    Args:
        config: a run's settings, with the placement that it had.
        setting: the flags that differ.
        parent: the folder of the run from which it started, if there is one.

    Returns:
        An empty list if no command has these settings: a part of them is an object of a Python
        program, or `parent` is no run that can be read.
    """
    if any(_only_in_python(str(value)) for value in _named(config)):
        return []
    try:
        changes = setting_values(config, read(setting_flags(), TRAIN, setting))
        wanted = revise(config, changes, {"devices": None} if "placement" in changes else {}, ONCE)
        before = build(config.algorithm)
        if parent is not None:
            asked = TrainArguments(config.algorithm, from_=parent, trust=True)  # runs no code
            before, _ = settle(asked, {"placement": wanted.run.placement})
        words = [*TRAIN.split(), config.algorithm]
        words += [] if parent is None else ["--from", parent]
        words += _differing(before, wanted, {*changes, "placement"})
        words += ["--placement", wanted.run.placement] * ("placement" not in changes)
        words += setting
        asked, given = read_settings(TrainArguments, TRAIN, words[2:])
        found, _ = settle(replace(asked, trust=True), given)
    except FlatoutError:
        return []
    # A value that flags cannot give, such as null in env_kwargs, is read as another one.
    return words if found.flat() == wanted.flat() else []


def _named(config: TrainConfig) -> list[Any]:
    """Return the settings whose values may be names of a Python program's objects."""
    hyper = vars(config.hyper)
    return [config.algorithm, config.env.env, hyper.get("data"), hyper.get("network")]


def _only_in_python(name: str) -> bool:
    return name.endswith(PASSED) or name.startswith("__main__:")


def _differing(before: TrainConfig, wanted: TrainConfig, without: set[str]) -> tuple[str, ...]:
    """Return flags for the settings in which `wanted` differs, the environment's name first."""
    there, here = before.flat(), wanted.flat()
    if not wanted.hyper.acts:  # in reports the dataset's name stands in the environment's place
        without = without | {"env"}
    names = [name for name in here if name not in without and here[name] != there.get(name)]
    return flags({name: here[name] for name in names})


def with_commands(diagnosis: Diagnosis, evidence: Evidence) -> Diagnosis:
    """Return a run's diagnosis with the whole command of each remedy that is a setting, or with the
    arguments that apply it, where a part of the run was given in Python."""
    if evidence.in_python or any(map(_only_in_python, map(str, _named(evidence.config)))):
        passed = evidence.config.env.env.endswith(PASSED)
        found = tuple(_in_python(finding, passed) for finding in diagnosis.findings)
        return replace(diagnosis, findings=found)
    if not evidence.repeatable:
        return diagnosis
    found = tuple(
        replace(
            finding,
            command=tuple(command_of_settings(evidence.config, finding.setting, evidence.parent)),
        )
        if finding.setting
        else finding
        for finding in diagnosis.findings
    )
    return replace(diagnosis, findings=found)


def _in_python(finding: Finding, passed: bool) -> Finding:
    """Return a finding whose remedy names arguments instead of flags.

    Args:
        passed: whether the environment was passed, as an object or as a function without a name.
    """
    if not finding.setting:
        return finding
    changes = arguments(finding.setting)
    words = ", ".join(f"{name}={value!r}" for name, value in changes.items())
    parts = [f"Pass {words} where the agent is made.", finding.remedy]
    if passed and "envs" in changes:
        parts.append("An environment object is a single one: pass a function that makes it.")
    return replace(finding, remedy=" ".join(filter(None, parts)), setting=())


def repeatable(folder: Path) -> bool:
    """Return whether a command may be shown that trains as a run did.

    It may not if a part of the run was given in Python, or if another user's folder names code:
    pasted into a shell, that would run.
    """
    config, values = load_values(folder, None, "config.json")
    if signing.signed_code(signing.RUN, values) is None and reaching_of(config):
        return False
    return not given_in_python(folder)


def given_in_python(folder: Path) -> bool:
    """Return whether a part of a run was given in Python, as its model card says. A run that has
    not ended has no card yet."""
    try:
        card = nofollow.read(folder / CARD, 1, MOST_CARD).decode(errors="replace")
    except OSError:
        return False
    return card.startswith(OURS) and f"\n    {TRAIN} " not in card
