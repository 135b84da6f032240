"""Many run folders at a glance: a row for each, from its small files alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout.config.schema import REPORT, affecting
from flatout.errors import UsageError, damage, nearest
from flatout.run.metric_rows import value_at
from flatout.storage.last_words import RUNNING
from flatout.storage.span_records import json_objects
from flatout_explain.files import locks, nofollow

DEPTH = 5
"""Folders below the given one in which runs are looked for."""

SMALL = 1 << 20
"""Maximum bytes of a file that is read."""
TAIL = 1 << 13
"""Bytes at the end of metrics.jsonl that are read of a run without a summary."""

ENDED = {"steps": "done", "return": "done (return)", "callback": "done (callback)",
         "signal": "stopped"}  # fmt: skip

NOT_TELLING = ("seed", *sorted(affecting(REPORT)))
"""Settings in which runs of one group may differ."""

OF_TASK = ("algorithm", "env")
"""Settings of which others depend, as in presets."""

_COLUMNS = {"value": "return"}


@dataclass(frozen=True)
class Row:
    """One run folder; what is not known is None.

    Attributes:
        run: its path below the folder that was looked at.
        evaluation: mean return of the last evaluation, or a classifier's test accuracy.
        value: mean return of the last 100 training episodes.
        state: done, stopped (by a signal), running, killed, begun (nothing is known yet), or
            damaged and why.
    """

    run: str
    algorithm: str | None = None
    env: str | None = None
    evaluation: float | None = None
    value: float | None = None
    steps: int | None = None
    steps_per_s: float | None = None
    verdict: str | None = None
    state: str = ""
    parent: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def classifies(self) -> bool:
        """Whether it is a classifier's, which has an accuracy in the place of returns."""
        return self.algorithm == "classify"

    def columns(self) -> dict[str, Any]:
        """By the names under which they are shown, sorted and filtered."""
        return {_COLUMNS.get(n, n): v for n, v in vars(self).items() if n != "settings"}


def rows(root: Path) -> list[Row]:
    """A row for each run in a folder and below it (populations' members too), by their names.

    Links are not followed.

    Raises:
        UsageError: there is no such folder.
    """
    if not root.is_dir():
        raise UsageError(f"{root} is no folder; name one that holds runs: flatout runs DIR.")
    return sorted(_below(root, ""), key=lambda row: row.run)


def _below(root: Path, name: str) -> Iterator[Row]:
    path = root / name
    depth = len(Path(name).parts)
    try:
        with nofollow.folder(path, depth) as folder, os.scandir(folder.listed) as found:
            kinds = {entry.name: entry.is_dir(follow_symlinks=False) for entry in found}
    except OSError as error:
        yield Row(name or ".", state=f"damaged: {error.strerror or error}")
        return
    if "config.json" in kinds:
        yield read(root, name, kinds)
    elif not kinds.keys().isdisjoint(("metrics.jsonl", "summary.json", "checkpoints")):
        yield Row(name or ".", state="damaged: there is no config.json")
    elif depth < DEPTH:
        shared = "groups" if "population.json" in kinds else ""  # checkpoints of several members
        for below in sorted(kinds):
            if kinds[below] and not below.startswith(".") and below != shared:
                yield from _below(root, os.path.join(name, below))


def read(root: Path, name: str, there: Iterable[str]) -> Row:
    """The row of one run folder; damage is its state.

    Args:
        root: the folder that was looked at; links may lead to it.
        name: of the run's folder below it.
        there: the names of its files.
    """
    path, depth = root / name, len(Path(name).parts) + 1

    def values(file: str) -> dict[str, Any]:
        found = nofollow.read_json(path / file, depth, SMALL)
        return found if isinstance(found, dict) else {}

    summary: dict[str, Any] = {}
    state, row, file = "begun", dict[str, Any](), "config.json"
    try:
        config = values(file)
        row |= {name: _word(config.get(name)) for name in ("algorithm", "parent")}
        row["settings"] = settings = dict(config["settings"])
        row["env"] = _word(settings.get("env"))
        if "summary.json" in there:
            summary = values(file := "summary.json")
            state = ENDED.get(str(summary["ended"]), "done")
        elif "metrics.jsonl" in there:
            file = "metrics.jsonl"
            summary, state = _newest(path / file, depth), "ended early"
        if RUNNING in there:
            state = "running" if locks.in_use(path / (file := locks.LOCK), depth) else "killed"
    except OSError as error:
        state = f"damaged: {file}: {error.strerror or error}"
    except (ValueError, KeyError, TypeError) as error:
        state = f"damaged: {file}: {damage(error)[:100]}"
    steps = _number(summary.get("steps"))

    def first(*keys: str) -> float | None:
        numbers = (_number(summary.get(key)) for key in keys)
        return next((number for number in numbers if number is not None), None)

    return Row(
        name or ".", evaluation=first("last_eval_return", "test_accuracy"),
        value=first("return_mean_100", "return_mean_last"),
        steps=None if steps is None else int(steps),
        steps_per_s=_number(summary.get("steps_per_s")), verdict=_word(summary.get("verdict")),
        state=state, **row,
    )  # fmt: skip


def _newest(path: Path, depth: int) -> dict[str, Any]:
    """The last row of metrics and the newest evaluation, as a summary would say them."""
    with nofollow.open_stream(path, nofollow.READ, depth) as file:
        file.seek(max(os.fstat(file.fileno()).st_size - TAIL, 0))
        lines = file.read(TAIL).splitlines()
    rows = json_objects(lines)
    if not rows:
        return {}
    names = ("eval/return_mean", "eval/accuracy")
    evaluations = [row[name] for row in rows for name in names if name in row]
    evaluation = evaluations[-1] if evaluations else None
    for name in names:  # many rows may have followed the evaluation
        if evaluation is None:
            with suppress(ValueError, LookupError, TypeError, AttributeError):  # a damaged row
                evaluation = value_at(path, None, name, depth)
    return {
        "steps": rows[-1]["step"], "last_eval_return": evaluation,
        "return_mean_last": rows[-1].get("rollout/return_mean_100"),
        "steps_per_s": rows[-1].get("time/steps_per_s"),
    }  # fmt: skip


def _number(value: Any) -> float | None:
    return value if type(value) in (int, float) and abs(value) < 1e300 else None  # and no NaN


def _word(value: Any) -> str | None:
    return value[:200] if isinstance(value, str) else None


def chosen(found: Sequence[Row], where: Sequence[str], sort: str | None) -> list[Row]:
    """The rows that fulfil all of ``KEY=VALUE``; numbers sorted from the largest, text from A.

    A key is a column or a setting.

    Raises:
        UsageError: a key that no run has, or no ``KEY=VALUE``.
    """
    table = [(row, {**row.settings, **row.columns()}) for row in found]
    names = {name for _, values in table for name in values}

    def key(text: str, flag: str) -> str:
        name = text.strip().replace("-", "_")
        if found and name not in names:
            raise UsageError(f"{flag} {text}: no run has that.{nearest(name, names)}")
        return name

    for condition in where:
        text, separator, wanted = condition.partition("=")
        if not separator:
            raise UsageError(f"--where {condition}: write KEY=VALUE, such as env=CartPole-v1.")
        name = key(text, "--where")
        table = [(row, values) for row, values in table if _same(values.get(name), wanted)]
    if sort is not None:
        name = key(sort, "--sort")
        table.sort(key=lambda pair: _order(pair[1].get(name)))
    return [row for row, _ in table]


def alike(
    every: Sequence[Mapping[str, Any]],
    group: Sequence[str] = (),
    aside: Sequence[str] = NOT_TELLING,
) -> list[tuple[str, list[int]]]:
    """The places of equal settings, in the order of the first of each, and what sets them apart
    in words, which are empty if nothing does.

    Args:
        group: settings that tell them apart; without any, all but those `aside` and those that
            differ only between environments or algorithms, such as the steps that each needs.

    Raises:
        UsageError: nothing has a setting by which to group.
    """
    names = list(dict.fromkeys(key for settings in every for key in settings))
    for key in group:
        if key not in names:
            raise UsageError(f"these runs have no setting {key!r}.{nearest(key, names)}")
    telling = group or [key for key in names if key not in aside]
    if not group:  # the members of a population may be on several like devices
        every = [settings | {"placement": _kinds(settings)} for settings in map(dict, every)]
    first = every[0] if every else {}
    differing = [key for key in telling if any(s.get(key) != first.get(key) for s in every)]
    if not group:
        differing = [key for key in differing if key in OF_TASK or _differs(key, every)]
    groups: dict[str, list[int]] = {}
    for place, settings in enumerate(every):
        values = [settings.get(key) for key in differing]
        groups.setdefault(json.dumps(values, default=str), []).append(place)
    return [
        (", ".join(f"{key}={every[places[0]].get(key)}" for key in group or differing), places)
        for places in groups.values()
    ]


def _differs(key: str, every: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether runs of one algorithm in one environment differ in a setting."""
    values: dict[tuple[Any, ...], Any] = {}
    tasks = (tuple(map(settings.get, OF_TASK)) for settings in every)
    return any(
        values.setdefault(task, settings.get(key)) != settings.get(key)
        for task, settings in zip(tasks, every, strict=True)
    )


def _kinds(settings: Mapping[str, Any]) -> str:
    """The placement without the devices' numbers."""
    return re.sub(r"([cg]pu):\d+", r"\1", str(settings.get("placement")))


def _same(value: Any, wanted: str) -> bool:
    if isinstance(value, bool) or value is None:
        return str(value).lower() == wanted.lower()
    if isinstance(value, list):  # as a flag takes it, or as a table shows it
        items: list[Any] = value
        return [str(one) for one in items] == re.split(r"\s*,\s*", wanted.strip("[] "))
    with suppress(ArithmeticError, ValueError, TypeError):
        return float(value) == float(wanted)
    return str(value) == wanted


def _order(value: Any) -> tuple[int, float, str]:
    number = _number(value)
    if number is not None:
        return 0, -number, ""
    return (2, 0.0, "") if value is None else (1, 0.0, str(value))
