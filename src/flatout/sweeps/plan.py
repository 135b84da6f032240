"""The plan of a sweep: configurations, each trained with several seeds, as plain data.

A *group* is one configuration with all of its seeds, and a *trial* one run of it. A *study*
proposes groups and receives their results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from flatout.config.hyper import OwnConfig
from flatout.config.schema import EnvConfig, TrainConfig
from flatout.config.settings import changeable, present, resolve, revise
from flatout.config.values import hints
from flatout.errors import UsageError
from flatout.storage.trust import CODE, REACHING
from flatout.sweeps.sections import MOST, drawn, grid, listed, refuse_many
from flatout_explain.documents import convert, parse_json
from flatout_explain.files.nofollow import is_plain_name

SHARED = "population-"
"""Prefix of the names of folders with several trials that one process trains."""

STRATEGIES = ("auto", "together", "spread", "apart")
"""How trials of one compiled program are trained; with apart, each in a process of its own."""

SECTIONS = ("seeds", "grid", "list", "random", "optuna")
"""The sections of a sweep's file; everything else in it is a setting."""

REFUSED = {
    "algorithm": "a sweep has one",
    "seed": "seeds says which there are",
    "run_dir": "each trial has a folder of its own",
}
"""Settings in which configurations cannot differ, with the reason."""

_ACTING = frozenset(hints(EnvConfig))
"""Settings that an algorithm without an environment does not have."""


@dataclass(frozen=True)
class Group:
    """One configuration: its name, and the settings by which it differs from the others."""

    name: str
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Trial:
    """One run: its name, the name of its group, and all of its settings as JSON values."""

    name: str
    group: str
    algorithm: str
    settings: Mapping[str, Any]

    @property
    def steps(self) -> int:
        return int(self.settings["steps"])

    def config(self) -> TrainConfig:
        """Return the settings, checked."""
        return resolve(self.algorithm, self.settings)


@dataclass(frozen=True)
class Job:
    """Trials that one process trains: a single one, or a population. Plain data.

    Attributes:
        folder: the run's folder, or the population's.
        population: whether the trials form a population.
        strategy: how a population is trained.
        cap_mb: memory that the process may take, in MiB, or None.
        alone: whether no other job runs at the same time, so that all of a GPU's memory is free.
    """

    name: str
    trials: tuple[Trial, ...]
    folder: str
    population: bool = False
    strategy: str = "auto"
    cap_mb: float | None = None
    alone: bool = False

    @property
    def devices(self) -> tuple[Any, ...]:
        """The devices that a process opens and keeps; jobs with others need another process."""
        settings = self.trials[0].settings
        return (self.alone, *map(settings.get, ("placement", "devices", "virtual_devices")))

    def as_json(self) -> bytes:
        """Return the job as JSON; `read_job` reads it."""
        return json.dumps(asdict(self), default=str).encode()


def read_job(text: str | bytes) -> Job:
    """Return the job that `Job.as_json` wrote."""
    return convert(parse_json(text, finite=False), Job)


class Study(Protocol):
    """A study: proposes groups, and learns from their results.

    Attributes:
        prunes: whether it may stop groups early.
        pruned: names of the groups that it has stopped early.
        notes: sentences for the user.
    """

    prunes: bool
    pruned: set[str]
    notes: list[str]

    def ask(self, most: int) -> list[Group]:
        """Return new groups for up to `most` trials, or all groups if they are known beforehand.

        The list is empty if there are no more, or if the study waits for results.
        """
        ...

    def tell(self, group: str, objective: float | None) -> None:
        """Receive the result of a group that has ended; None if all of its trials failed."""
        ...

    def prune(self, group: str, step: int, objective: float) -> bool:
        """Return whether to stop a group early, given its objective at a step."""
        ...


class Fixed:
    """A study of configurations that are known beforehand."""

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


def choices(sections: Any) -> Iterator[tuple[str, Any]]:
    """Return all values in a file's sections of settings that may name code, files or addresses."""
    if isinstance(sections, Mapping):
        for key, value in sections.items():
            name = str(key).replace("-", "_")
            if name not in REACHING:
                yield from choices(value)
            elif isinstance(value, list):
                yield from ((name, each) for each in value)
            else:
                yield name, value
    elif isinstance(sections, list):
        for value in sections:
            yield from choices(value)


def named_in(sections: Any) -> list[str]:
    """Return all environments, networks and data that a file's sections name."""
    return [value for name, value in choices(sections) if name in CODE and isinstance(value, str)]


@dataclass
class SweepPlan:
    """The plan of a sweep, new or read from its folder; of a new one, whether the user has named
    the folder."""

    base: TrainConfig
    seeds: Sequence[int]
    groups: list[Group]
    path: Path
    strategy: str = "auto"
    populations: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    optuna: dict[str, Any] | None = None
    study: Study | None = None
    ray: Any = None
    named: bool = True

    @property
    def configurations(self) -> int:
        return len(self.groups) if self.optuna is None else int(self.optuna["trials"])

    @property
    def trials(self) -> list[Trial]:
        """The trials that are known beforehand."""
        return [one for group in self.groups for one in trials(self.base, group, self.seeds)]


def seeds_of(value: Any, first: int) -> tuple[int, ...]:
    """Return the seeds that ``seeds = 5`` (from `first` on) or ``seeds = [3, 5]`` name.

    Raises:
        UsageError: the value has neither form.
    """
    if type(value) is int and 1 <= value <= MOST:
        return tuple(range(first, first + value))
    if isinstance(value, list) and value and all(type(seed) is int for seed in value):
        return tuple(dict.fromkeys(value))
    raise UsageError(f"seeds = {str(value)[:100]}: a number of seeds from 1 on, or a list of them.")


def groups(base: TrainConfig, sections: Mapping[str, Any], where: str) -> list[Group]:
    """Return all configurations of a sweep, without duplicates: grid, list and random ones.

    Args:
        base: the settings that all trials share.
        sections: the values of `SECTIONS`, as a file holds them.
        where: the name of their source for messages.

    Raises:
        UsageError: an unknown setting, an impossible value, or a malformed section.
    """
    rows = [row for name, make in (("grid", grid), ("list", listed), ("random", drawn))
            if name in sections for row in make(sections[name], f"{where}: [{name}]")]  # fmt: skip
    refuse_many(len(rows), where)
    found = dict[str, Group]()
    taken = set[str]()
    for row in rows or [{}]:
        row = {key.replace("-", "_"): value for key, value in row.items()}
        for key in row.keys() & REFUSED.keys():
            raise UsageError(f"{where}: configurations cannot differ in {key}: {REFUSED[key]}.")
        for key in () if base.hyper.acts else row.keys() & _ACTING:
            raise UsageError(f"{where}: {key}: {base.algorithm} has no environment.")
        try:
            revise(base, row)
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
    """Return a configuration's name for its folders; a long name is cut."""
    return "_".join(f"{key}={_text(value)}" for key, value in row.items())[:150]


def _text(value: Any) -> str:
    """Return a value as a part of a folder's name."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, float) and float(text) != value:
        text = repr(value)
    return re.sub(r"[^\w.+-]+", "-", text, flags=re.ASCII).strip("-") or "-"


def trials(base: TrainConfig, group: Group, seeds: Sequence[int]) -> list[Trial]:
    """Return the trials of a group.

    Raises:
        UsageError: impossible settings, or a name that no folder can have.
    """
    config = revise(base, group.row)
    common = config.flat()
    if config.run.placed is None or not config.run.placed.on_cluster:
        common["ray_address"] = None  # it is the address of the cluster of whole trials
    common = {k: list(v) if isinstance(v, tuple) else v for k, v in common.items()}
    return [
        Trial(name, group.name, base.algorithm, common | {"seed": seed})
        for name, seed in zip(trial_names(group, seeds), seeds, strict=True)
    ]


def trial_names(group: Group, seeds: Sequence[int]) -> list[str]:
    """Return the names of a group's trials, which are also those of their folders.

    Raises:
        UsageError: a name that no folder can have.
    """
    names = ["_".join(filter(None, (group.name, f"seed={seed}"))) for seed in seeds]
    for name in names:
        if not is_plain_name(name):
            raise UsageError(f"{name[:100]!r} is no folder's name, as a trial's has to be.")
    return names


def populations(found: Sequence[Trial], parts: int) -> dict[str, list[str]]:
    """Return the trials that one program can train, by the name of their population's folder.

    Args:
        parts: the number of processes over which trials of one compiled program are divided.
    """
    shapes = dict[str, list[str]]()
    for trial in found:
        config = trial.config()
        if _compiled(config):
            shapes.setdefault(shape(config), []).append(trial.name)
    names = list[list[str]]()
    for same in shapes.values():
        count = max(min(parts, len(same) // 2), 1)
        names += [same[number::count] for number in range(count) if len(same) > 1]
    return {f"{SHARED}{number}": some for number, some in enumerate(names, 1)}


def shape(config: TrainConfig) -> str:
    """Return a text that is equal for all trials that can share their programs."""
    free = {*changeable(config), "run_dir"}
    fixed = {key: None if key in free and value is not None else [value]
             for key, value in config.flat().items()}  # fmt: skip
    return json.dumps([fixed, sorted(present(config.hyper))], default=str)


def _compiled(config: TrainConfig) -> bool:
    """Return whether environments and learning are one program, which can train many members."""
    placed = config.run.placed
    return (
        config.env.backend_device and config.hyper.acts
        and not isinstance(config.hyper, OwnConfig)
        and (placed is None or placed.fused or config.run.leaves_sampler)
        and getattr(config.hyper, "rollout_episodes", None) is None
    )  # fmt: skip
