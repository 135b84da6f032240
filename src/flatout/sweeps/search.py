"""The ``[optuna]`` table of a sweep: Optuna proposes configurations and stops bad ones early.

A trial of Optuna's is a group here: all seeds of a configuration. Its value is the group's
objective, which is maximised. Samplers and storages of Optuna that use pickle (CMA-ES, Redis) are
not offered.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flatout.config.schema import TrainConfig
from flatout.config.settings import revise
from flatout.errors import CheckpointError, FlatoutError, UsageError, nearest, one_line, short
from flatout.sweeps.optuna_proposals import (
    optuna_package,
    pruner,
    sampler,
    suggest,
    try_options,
    value_of,
)
from flatout.sweeps.optuna_storage import open_study
from flatout.sweeps.plan import REFUSED, Group, title
from flatout.sweeps.sections import MOST, limits

DEFAULTS: dict[str, Any] = {
    "trials": None, "space": None, "sampler": "tpe", "pruner": "none", "storage": "", "study": "",
    "seed": 0, "identity": "",
}  # fmt: skip
"""The keys of the table with their defaults; the first two are required. `trials` is the number of
configurations, and `identity` is set by Flatout."""

MOST_CHOICES, MOST_PAIRS = 1000, 10_000
"""Maximum number of choices and limits of all settings in a space, and of pairs of them that are
checked together."""

Space = Mapping[str, Any]
"""For each setting a list to choose from, or ``{low, high}`` with or without ``log``."""


def settings_of(table: Any, base: TrainConfig, where: str) -> dict[str, Any]:
    """Return the table, checked and with its defaults and a new identity.

    Args:
        base: the settings that all trials share.
        where: the table's name for messages.

    Raises:
        UsageError: an unknown key, an impossible value, or Optuna is not installed.
    """
    given = dict(table) if isinstance(table, dict) else {}
    for key in given.keys() - DEFAULTS.keys():
        raise UsageError(f"{where} has no {key!r}.{nearest(key, DEFAULTS)}")
    found = DEFAULTS | given
    if type(found["trials"]) is not int or not 1 <= found["trials"] <= MOST:
        raise UsageError(f"{where} needs trials = N, how many configurations are tried.")
    for key, kind in (("storage", str), ("study", str), ("seed", int), ("identity", str)):
        if type(found[key]) is not kind:
            raise UsageError(f"{where} {key} = {str(found[key])[:100]} is no {kind.__name__}.")
    if not isinstance(found["space"], dict) or not found["space"]:
        raise UsageError(f"{where} needs a table [optuna.space] of settings.")
    found["space"] = {key.replace("-", "_"): value for key, value in found["space"].items()}
    rows = list(examples(found["space"], where))
    if len(rows) > MOST_CHOICES:
        raise UsageError(
            f"{where} space has {len(rows):,} choices and limits; it may have {MOST_CHOICES:,}."
        )
    pairs = 0
    for row in rows:
        for key in row.keys() & REFUSED.keys():
            raise UsageError(f"{where}: configurations cannot differ in {key}: {REFUSED[key]}.")
        why = _refusal(base, row)
        for other in rows if why else ():  # what fits with another setting's value may be asked
            pairs += 1
            if pairs > MOST_PAIRS or not _refusal(base, other | row):
                break  # of very many, what is impossible is found out when it is asked
        else:
            if why:
                raise UsageError(f"{where}: {why}")
    if len({bool(row["eval_every"]) for row in rows if "eval_every" in row}) > 1:
        raise UsageError(
            f"{where}: eval_every is 0 in some configurations only: returns of training and of "
            "evaluations cannot be compared."
        )
    try_options(found, base.run.steps, where)
    return found | {"identity": found["identity"] or secrets.token_hex(8)}


def _refusal(base: TrainConfig, row: Mapping[str, Any]) -> str:
    """Return why a configuration is impossible; empty if it is possible."""
    try:
        revise(base, row)
    except UsageError as error:
        return str(error)
    return ""


def examples(space: Space, where: str) -> Iterator[dict[str, Any]]:
    """Return configurations that change one setting, to each of its choices or limits.

    Raises:
        UsageError: a setting has neither a list nor limits.
    """
    for key, values in space.items():
        if isinstance(values, list) and values:
            yield from ({key: value} for value in values)
            continue
        low, high, _ = limits(values, f"{where} space {key}")
        yield from ({key: low}, {key: high})


@contextmanager
def _reported(what: str) -> Iterator[None]:
    """Turn errors of Optuna and its storage into a `CheckpointError` that begins with `what`."""
    try:
        yield
    except FlatoutError:
        raise
    except Exception as error:  # Optuna trusts its journal
        raise CheckpointError(
            f"[optuna] {what} ({type(error).__name__}: {one_line(error)[:200]})."
        ) from error


def _check_trials(found: Sequence[Any], most: int) -> None:
    """Refuse stored trials that a sweep of `most` configurations cannot have made.

    Raises:
        CheckpointError: there are too many, their numbering has gaps, or a result is not a number.
    """
    if len(found) > most:
        raise CheckpointError(
            f"[optuna] the study holds {len(found):,} configurations, and this sweep has {most:,}: "
            "it is damaged, or belongs to another sweep."
        )
    if sorted(frozen.number for frozen in found) != list(range(len(found))):
        raise CheckpointError(
            f"[optuna] the study's {len(found):,} configurations are not numbered from 0 to "
            f"{len(found) - 1:,}: it is damaged."
        )
    for frozen in found:
        values = [frozen.value, *frozen.intermediate_values.values()]
        for value in values:
            if value is not None and (type(value) not in (int, float) or not math.isfinite(value)):
                raise CheckpointError(
                    f"[optuna] the study holds the result {short(value)}, which is no number: it "
                    "is damaged."
                )
        for step in frozen.intermediate_values:
            if type(step) is not int:
                raise CheckpointError(
                    f"[optuna] the study holds a result of step {short(step)}, which is no whole "
                    "number: it is damaged."
                )


class Search:
    """A study in a storage of Optuna's; see `flatout.sweeps.plan.Study`.

    Args:
        settings: those that `settings_of` returns.
        base: the settings that all trials share.
        every: steps between two decisions about stopping a group.
        folder: the sweep's folder.

    Attributes:
        pruned: names of the groups that were stopped early.
        notes: sentences for the user.

    Raises:
        FlatoutError: the storage cannot be opened.
        UsageError: the study belongs to another sweep.
        CheckpointError: it holds trials that this sweep cannot have proposed.
    """

    def __init__(
        self, settings: Mapping[str, Any], base: TrainConfig, every: int, folder: Path
    ) -> None:
        self._optuna, self._settings, self._base = optuna_package(), settings, base
        self.prunes = settings["pruner"] != "none"
        self.pruned, self.notes = set[str](), list[str]()
        self._impossible = set[str]()  # names of groups
        self._numbers = dict[str, list[int]]()  # of a group's trials: twins are trained once
        self._names = dict[str, str]()  # of groups, by their rows
        self._told = dict[str, float | None]()
        self._trials = dict[str, Any]()  # Optuna's, of groups that may run
        self._count = 0
        self._study = open_study(self._optuna, settings, folder)
        self._study.pruner = pruner(settings, every, base.run.steps, "[optuna]")
        with _reported("the study is damaged"):
            found = self._study.get_trials(deepcopy=False)
            _check_trials(found, settings["trials"])
            self._before = [group for one in found if (group := self._group(one)) is not None]

    def ask(self, most: int) -> list[Group]:
        asked, self._before = self._before, []
        while not asked and self._count < self._settings["trials"]:
            with _reported("Optuna cannot propose a configuration"):
                self._study.sampler = sampler(self._settings, self._count, "[optuna]")
                trial = self._study.ask()
                group = self._group(self._study.get_trials(deepcopy=False)[trial.number], trial)
            asked = [] if group is None else [group]
        return asked

    def _group(self, frozen: Any, trial: Any = None) -> Group | None:
        """Return the group of one of Optuna's trials; None if the configuration is impossible or
        equal to an earlier one."""
        states, space = self._optuna.trial.TrialState, self._settings["space"]
        params = frozen.params
        self._count += 1
        if not frozen.state.is_finished():
            if trial is None:
                self._study.sampler = sampler(self._settings, frozen.number, "[optuna]")
                trial = self._optuna.trial.Trial(self._study, frozen._trial_id)
            params = {key: suggest(trial, key, values) for key, values in space.items()}
        row = {key: value_of(params.get(key), key, values) for key, values in space.items()}
        key = json.dumps(row, sort_keys=True)
        name = self._names.setdefault(key, f"{frozen.number:04}_{title(row)}")
        numbers = self._numbers.setdefault(name, [])
        numbers.append(frozen.number)
        if len(numbers) > 1:
            if name in self._told:
                self._finish(frozen.number, name)
            return None
        self._trials[name] = trial
        if frozen.state.is_finished():
            self._told[name] = frozen.value if frozen.state == states.COMPLETE else None
        if frozen.state == states.PRUNED:
            self.pruned.add(name)
        if why := _refusal(self._base, row):
            self.notes.append(f"{name}: {why}")
            self._impossible.add(name)
            self.tell(name, None)
            return None
        return Group(name, row)

    def tell(self, group: str, objective: float | None) -> None:
        if group in self._told:
            return
        good = objective is not None and math.isfinite(objective)
        self._told[group] = objective if good else None
        for number in self._numbers[group]:
            self._finish(number, group)

    def _finish(self, number: int, group: str) -> None:
        """Store the result of one of a group's trials. One that failed stays open: a resumed sweep
        tries it again, and Optuna takes no result for a trial that has ended."""
        states, value = self._optuna.trial.TrialState, self._told[group]
        if value is not None:
            state = states.COMPLETE
        elif group in self.pruned:
            state = states.PRUNED
        elif group in self._impossible:
            state = states.FAIL
        else:
            return
        with _reported("the study cannot store a result"):
            self._study.tell(number, value, state, skip_if_finished=True)

    def prune(self, group: str, step: int, objective: float) -> bool:
        if group in self._told:
            return group in self.pruned
        trial, number = self._trials[group], self._numbers[group][0]
        with _reported("the pruner cannot judge a configuration"):
            before = self._study.get_trials(deepcopy=False)[number].intermediate_values
            if step in before or not math.isfinite(objective):  # before a kill: it was not pruned
                return False
            trial.report(objective, step)
            bad = trial.should_prune()
        if bad:
            self.pruned.add(group)
            self.tell(group, None)
        return bad
