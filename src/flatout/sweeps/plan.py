"""What a sweep trains: configurations, each a group of seeds; all of it plain data.

A *group* is one configuration with all of its seeds, a *trial* one run of it. A *study* proposes
groups and is told what became of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from flatout.config.hyper import OwnConfig
from flatout.config.schema import TrainConfig
from flatout.config.settings import changeable, resolve, revise
from flatout.errors import UsageError
from flatout.storage.trust import CODE, REACHING
from flatout.sweeps.sections import MOST, drawn, grid, listed, refuse_many
from flatout_explain.documents import convert, parse_json
from flatout_explain.files.nofollow import is_plain_name

SHARED = "population-"
"""How the names of folders of trials that one process trains begin."""

STRATEGIES = ("auto", "together", "spread", "apart")
"""How one program may train several trials; apart: none does."""

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


@dataclass(frozen=True)
class Job:
    """Trials that one process trains: one alone, or a population. Plain data.

    Attributes:
        folder: the run folder, or the population's.
        population: whether it is a population.
        strategy: of a population.
        cap_mb: memory that the process may take, in MiB, or None.
        alone: no other job runs meanwhile, so that a card's memory need not be shared.
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
        """What a process has opened for good: jobs that differ in it need processes apart."""
        settings = self.trials[0].settings
        return (self.alone, *map(settings.get, ("placement", "devices", "virtual_devices")))

    def as_json(self) -> bytes:
        """The values as they travel; `read_job` reads them."""
        return json.dumps(asdict(self), default=str).encode()


def read_job(text: str | bytes) -> Job:
    """What `Job.as_json` gave."""
    return convert(parse_json(text, finite=False), Job)


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


def choices(sections: Any) -> Iterator[tuple[str, Any]]:
    """All values that a file's sections give to settings that may name code, files or addresses."""
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
    """All environments, networks and data that a file's sections name."""
    return [value for name, value in choices(sections) if name in CODE and isinstance(value, str)]


@dataclass
class SweepPlan:
    """A sweep's plan, new or from its folder."""

    base: TrainConfig
    seeds: Sequence[int]
    groups: list[Group]
    path: Path
    strategy: str = "auto"
    populations: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    optuna: dict[str, Any] | None = None
    study: Study | None = None
    ray: Any = None

    @property
    def configurations(self) -> int:
        return len(self.groups) if self.optuna is None else int(self.optuna["trials"])

    @property
    def trials(self) -> list[Trial]:
        """Those that are known beforehand."""
        return [one for group in self.groups for one in trials(self.base, group, self.seeds)]


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


def groups(base: TrainConfig, sections: Mapping[str, Any], where: str) -> list[Group]:
    """All configurations of a sweep: the grid's, the list's, and the drawn ones; each once.

    Args:
        base: what trials have in common.
        sections: `SECTIONS`, as a file has them.
        where: names them in messages.

    Raises:
        UsageError: a key that is no setting, an impossible value, or a malformed section.
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
    """A configuration as a folder's name has it; long ones are cut."""
    return "_".join(f"{key}={_text(value)}" for key, value in row.items())[:150]


def _text(value: Any) -> str:
    """A value as a part of a folder's name."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, float) and float(text) != value:
        text = repr(value)
    return re.sub(r"[^\w.+-]+", "-", text, flags=re.ASCII).strip("-") or "-"


def trials(base: TrainConfig, group: Group, seeds: Sequence[int]) -> list[Trial]:
    """The runs of a group.

    Raises:
        UsageError: its settings are impossible, or its name, which may be a file's, is no folder's.
    """
    common = revise(base, group.row).flat()
    common = {k: list(v) if isinstance(v, tuple) else v for k, v in common.items()}
    return [
        Trial(name, group.name, base.algorithm, common | {"seed": seed})
        for name, seed in zip(trial_names(group, seeds), seeds, strict=True)
    ]


def trial_names(group: Group, seeds: Sequence[int]) -> list[str]:
    """The names of a group's runs, which are those of their folders.

    Raises:
        UsageError: one cannot be a folder's.
    """
    names = ["_".join(filter(None, (group.name, f"seed={seed}"))) for seed in seeds]
    for name in names:
        if not is_plain_name(name):
            raise UsageError(f"{name[:100]!r} is no folder's name, as a trial's has to be.")
    return names


def populations(found: Sequence[Trial], parts: int) -> dict[str, list[str]]:
    """The trials that one program can train, by the name of their population's folder.

    Args:
        parts: those of one shape are divided among so many processes.
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
    """What is equal in the settings of all trials that can share their programs, as text."""
    free = {*changeable(config), "run_dir"}
    fixed = {key: None if key in free and value is not None else [value]
             for key, value in config.flat().items()}  # fmt: skip
    return json.dumps(fixed, default=str)


def _compiled(config: TrainConfig) -> bool:
    """Whether environments and learning are one program, which can be mapped over members."""
    placed = config.run.placed
    return (
        config.env.backend_device and config.hyper.acts
        and not isinstance(config.hyper, OwnConfig)
        and (placed is None or placed.fused or config.run.leaves_sampler)
        and getattr(config.hyper, "rollout_episodes", None) is None
    )  # fmt: skip
