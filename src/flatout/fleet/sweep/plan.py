"""What a sweep trains: configurations, each a group of seeds; all of it plain data.

A *group* is one configuration with all of its seeds, a *trial* one run of it. A *study* proposes
groups and is told what became of them.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from flatout.config.hyper import OwnConfig
from flatout.config.schema import TrainConfig
from flatout.config.settings import changeable, parse_kwargs, resolve
from flatout.documents import read_toml
from flatout.errors import UsageError
from flatout.storage.nofollow import is_plain_name

MOST = 100_000
"""Trials of one sweep."""

SHARED = "population-"
"""How the names of folders of trials that one process trains begin."""

SECTIONS = ("seeds", "grid", "list", "random", "optuna")
"""What a sweep's file has beside settings."""

REFUSED = {
    "algorithm": "a sweep has one",
    "seed": "seeds says which there are",
    "run_dir": "each trial has a folder of its own",
}
"""What configurations cannot differ in, and why."""


@dataclass(frozen=True)
class Group:
    """One configuration: its name, and the settings by which it differs from the others."""

    name: str
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Trial:
    """One run: its name, its group's, and all of its settings, as JSON can hold them."""

    name: str
    group: str
    algorithm: str
    settings: Mapping[str, Any]

    @property
    def steps(self) -> int:
        return int(self.settings["steps"])

    def config(self) -> TrainConfig:
        """Its settings, checked."""
        return resolve(self.algorithm, self.settings)


class Study(Protocol):
    """Proposes groups, and learns from what they achieved.

    Attributes:
        prunes: whether it may give groups up.
        pruned: names of those that it has given up.
        notes: sentences for the user.
    """

    prunes: bool
    pruned: set[str]
    notes: list[str]

    def ask(self, most: int) -> list[Group]:
        """New groups for so many trials, or all at once that are known beforehand; none where there
        are no more, or those that run are waited for."""
        ...

    def tell(self, group: str, objective: float | None) -> None:
        """A group has ended; None: none of its trials did."""
        ...

    def prune(self, group: str, step: int, objective: float) -> bool:
        """Whether to give a group up, whose objective at a step is known."""
        ...


class Fixed:
    """The study of configurations that are known beforehand."""

    prunes = False

    def __init__(self, groups: Sequence[Group]) -> None:
        self._left = list(groups)
        self.pruned, self.notes = set[str](), list[str]()

    def ask(self, most: int) -> list[Group]:
        asked, self._left = self._left, []
        return asked

    def tell(self, group: str, objective: float | None) -> None:
        pass

    def prune(self, group: str, step: int, objective: float) -> bool:
        return False


def read(file: Path) -> dict[str, Any]:
    """A sweep's file: flat settings of all trials, and `SECTIONS`.

    Raises:
        UsageError: it cannot be read or is no TOML.
    """
    try:
        return read_toml(file)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise UsageError(f"{file} is no TOML: {error}.") from None


def environments(sections: Any, within: bool = False) -> Iterator[str]:
    """All environments that a file's sections name.

    Args:
        within: `sections` are values of ``env``.
    """
    if isinstance(sections, str) and within:
        yield sections
    elif isinstance(sections, Mapping):
        for key, value in sections.items():
            yield from environments(value, within or key == "env")
    elif isinstance(sections, list):
        for value in sections:
            yield from environments(value, within)


def seeds_of(value: Any, first: int) -> tuple[int, ...]:
    """The seeds that ``seeds = 5`` (from `first` on) or ``seeds = [3, 5]`` name.

    Raises:
        UsageError: neither.
    """
    if type(value) is int and 1 <= value <= MOST:
        return tuple(range(first, first + value))
    if isinstance(value, list) and value and all(type(seed) is int for seed in value):
        return tuple(dict.fromkeys(value))
    raise UsageError(f"seeds = {str(value)[:100]}: a number of seeds from 1 on, or a list of them.")


def grid_of(words: Sequence[str]) -> dict[str, list[Any]]:
    """The grid that ``KEY=V1,V2`` words say, as a file has it; ``[64,64]`` is one value.

    Raises:
        UsageError: a word that is none.
    """
    grid = dict[str, list[Any]]()
    for word in words:
        key, separator, text = word.partition("=")
        values = re.split(r",(?![^\[]*\])", text)
        if not separator or not key or not all(values):
            raise UsageError(f"--grid: {word!r} is not KEY=VALUE,VALUE ...")
        if key.replace("-", "_") in grid:
            raise UsageError(f"--grid names {key} twice.")
        found = [parse_kwargs([f"value={value}"])["value"] for value in values]
        grid[key.replace("-", "_")] = found
    return grid


def groups(base: TrainConfig, sections: Mapping[str, Any], where: str) -> list[Group]:
    """All configurations of a sweep: the grid's, the list's, and the drawn ones; each once.

    Args:
        base: what trials have in common.
        sections: `SECTIONS`, as a file has them.
        where: names them in messages.

    Raises:
        UsageError: a key that is no setting, an impossible value, or a malformed section.
    """
    rows = [row for name, make in (("grid", _grid), ("list", _list), ("random", _random))
            if name in sections for row in make(sections[name], f"{where}: [{name}]")]  # fmt: skip
    found = dict[str, Group]()
    taken = set[str]()
    for row in rows or [{}]:
        row = {key.replace("-", "_"): value for key, value in row.items()}
        for key in row.keys() & REFUSED.keys():
            raise UsageError(f"{where}: configurations cannot differ in {key}: {REFUSED[key]}.")
        try:
            resolve(base.algorithm, base.flat(), row)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
        name = plain = title(row)
        key, number = json.dumps(row, sort_keys=True, default=str), 2
        while name in taken and key not in found:  # long texts are cut, odd letters replaced
            name, number = f"{plain}-{number}", number + 1
        taken.add(name)
        found.setdefault(key, Group(name, row))
    return list(found.values())


def title(row: Mapping[str, Any]) -> str:
    """A configuration as a folder's name has it; long ones are cut."""
    return "_".join(f"{key}={_text(value)}" for key, value in row.items())[:150]


def _text(value: Any) -> str:
    """A value as a part of a folder's name."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, float) and float(text) != value:
        text = repr(value)
    return re.sub(r"[^\w.+-]+", "-", text, flags=re.ASCII).strip("-") or "-"


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise UsageError(f"{where} is not a table of settings.")
    return dict(value)


def _grid(section: Any, where: str) -> list[dict[str, Any]]:
    table = _table(section, where)
    for key, values in table.items():
        if not isinstance(values, list) or not values:
            raise UsageError(f"{where} {key} = {str(values)[:100]}: write a list of its values.")
    refuse_many(math.prod(map(len, table.values())), where)
    return [dict(zip(table, row, strict=True)) for row in itertools.product(*table.values())]


def refuse_many(count: int, where: str) -> None:
    """Refuse a sweep of so many trials, before they are made.

    Raises:
        UsageError: it is.
    """
    if count > MOST:
        raise UsageError(f"{where} names {count:,} trials; a sweep has at most {MOST:,}.")


def _list(section: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(section, list):
        raise UsageError(f"{where}: write a [[list]] for each configuration.")
    return [_table(row, where) for row in section]


def _random(section: Any, where: str) -> list[dict[str, Any]]:
    table = _table(section, where)
    count, seed = table.pop("count", None), table.pop("seed", 0)
    if type(count) is not int or not 1 <= count <= MOST or type(seed) is not int or not table:
        raise UsageError(f"{where} needs count, how many are drawn, a whole seed, and settings.")
    dice = random.Random(seed)
    return [
        {key: _draw(dice, values, f"{where} {key}") for key, values in table.items()}
        for _ in range(count)
    ]


def _draw(dice: random.Random, values: Any, where: str) -> Any:
    """One of a list, or a number of ``{low, high}`` (``log``: evenly over its logarithm)."""
    if isinstance(values, list) and values:
        return values[int(dice.random() * len(values))]
    try:
        given = dict(values)
        low, high, log = given.pop("low"), given.pop("high"), given.pop("log", False)
        if given or type(log) is not bool or not low < high or (log and low <= 0):
            raise ValueError
        if log:
            drawn = math.exp(math.log(low) + dice.random() * (math.log(high) - math.log(low)))
        else:
            drawn = low + dice.random() * (high - low)
        if type(low) is int and type(high) is int:
            return min(int(low + dice.random() * (high + 1 - low)) if not log else round(drawn),
                       high)  # fmt: skip
        return float(f"{drawn:.4g}")
    except (ArithmeticError, KeyError, TypeError, ValueError):
        raise UsageError(
            f"{where} = {str(values)[:100]}: write a list to choose from, or "
            "{ low = 1e-5, high = 1e-3, log = true }."
        ) from None


def trials(base: TrainConfig, group: Group, seeds: Sequence[int]) -> list[Trial]:
    """The runs of a group.

    Raises:
        UsageError: its settings are impossible, or its name, which may be a file's, is no folder's.
    """
    common = resolve(base.algorithm, base.flat(), group.row).flat()
    common = {k: list(v) if isinstance(v, tuple) else v for k, v in common.items()}
    found = [
        Trial("_".join(filter(None, (group.name, f"seed={seed}"))), group.name, base.algorithm,
              common | {"seed": seed})
        for seed in seeds
    ]  # fmt: skip
    for trial in found:
        if not is_plain_name(trial.name):
            raise UsageError(f"{trial.name[:100]!r} is no folder's name, as a trial's has to be.")
    return found


def populations(found: Sequence[Trial], parts: int) -> dict[str, list[str]]:
    """The trials that one program can train, by the name of their population's folder.

    Args:
        parts: those of one shape are divided among so many processes.
    """
    shapes = dict[str, list[str]]()
    for trial in found:
        config = trial.config()
        if not _compiled(config):
            continue
        free = [*changeable(config), "run_dir"]
        shape = {key: None if key in free and value is not None else [value]
                 for key, value in trial.settings.items()}  # fmt: skip
        shapes.setdefault(json.dumps(shape, sort_keys=True, default=str), []).append(trial.name)
    names = list[list[str]]()
    for same in shapes.values():
        count = max(min(parts, len(same) // 2), 1)
        names += [same[number::count] for number in range(count) if len(same) > 1]
    return {f"{SHARED}{number}": some for number, some in enumerate(names, 1)}


def _compiled(config: TrainConfig) -> bool:
    """Whether environments and learning are one program, which can be mapped over members."""
    placement = config.run.placement.strip()
    return (
        config.env.env_backend == "device" and config.hyper.acts
        and not isinstance(config.hyper, OwnConfig)
        and (placement in ("auto", "cpu", "gpu") or "schedule=fused" in placement)
        and getattr(config.hyper, "rollout_episodes", None) is None
    )  # fmt: skip
