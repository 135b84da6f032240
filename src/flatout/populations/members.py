"""The members of a population: seeds and hyper-parameters of one configuration's shape."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.config.aliases import meant
from flatout.config.hyper import OwnConfig
from flatout.config.placement import Placement
from flatout.config.schema import TrainConfig
from flatout.config.settings import changeable, load_file, parse_grid, present, revise
from flatout.errors import CheckpointError, FlatoutError, UsageError, damage, writing
from flatout.storage import signing
from flatout.storage.checkpoint import FORMAT
from flatout.storage.run_folder import (
    GROUPS,
    MARK,
    POPULATION,
    load_values,
    open_unused,
    refuse_taken,
    without_settings,
)
from flatout.storage.trust import Consent, code_of_run
from flatout_explain.files import locks, nofollow

FOLDER = "members"
"""Of a population's folder: each member's own run folder."""

CURVES = ("curves.svg", "curves.png")
"""Pictures of the members' curves in a population's folder."""

MOST = 4096
"""Members of one population."""


TOGETHER, SPREAD = NAMES = ("together", "spread")
"""One program for all members, or a run for each member, as many at a time as there are cores."""


@dataclass(frozen=True)
class Strategy:
    """How members share the machine.

    Attributes:
        name: one of `NAMES`.
        size: members at a time: in one program, which each device has, or side by side.
        why: in words.
        key: what the members' programs are known by on this machine (`shape_key`).
        placements: where members are, on the first device, the second, and so on in turn; empty
            where all are where the settings say.
    """

    name: str
    size: int
    why: str = ""
    key: str = ""
    placements: tuple[Placement, ...] = ()

    def words(self, count: int) -> str:
        """Return in a line how `count` members train, and why."""
        all_ = "all" if self.size == count else f"{self.size} at a time"
        if self.name == TOGETHER:
            how = f"{all_} in one program"
        else:
            how = "one after another" if self.size == 1 else f"{all_}, each as a run of its own"
        if self.placements:
            each = "each of " if self.name == TOGETHER else ""
            how += f" on {each}{', '.join(str(one.learn[0]) for one in self.placements)}"
        return f"{count} members, {how} (--strategy {self.name}): {self.why}"


@dataclass(frozen=True)
class Member:
    """One agent: its name, which is its folder's, and its settings."""

    name: str
    config: TrainConfig


def members(
    config: TrainConfig, seeds: int | None, words: Sequence[str], default: Path
) -> list[Member]:
    """The members that the flags name.

    Args:
        config: what they have in common.
        seeds: the number of seeds, which count up from the configuration's.
        words: ``KEY=V1,V2`` of a grid, or one file that lists members.
        default: the population's folder.

    Raises:
        UsageError: a key that changes a program or is unknown, a value that cannot be, or names
            that are not apart.
    """
    files = [word for word in words if word.endswith(".toml")]
    if files:
        if len(words) > 1:
            raise UsageError("--population takes one FILE.toml, or KEY=V1,V2 and may be repeated.")
        rows = _listed(Path(files[0]))
    else:
        rows = _grid(words)
    if seeds is not None:
        if any("seed" in row for _, row in rows):
            raise UsageError("--seeds and seeds of --population both say which seeds there are.")
        first = config.run.seed
        rows = [
            ("_".join(filter(None, (name, f"seed={seed}"))), row | {"seed": seed})
            for name, row in rows for seed in range(first, first + seeds)
        ]  # fmt: skip
    if not 1 <= len(rows) <= MOST:
        raise UsageError(f"a population has 1 to {MOST:,} members, not {len(rows):,}.")
    return [_member(config, name, row, default) for name, row in rows]


def _member(config: TrainConfig, name: str, row: Mapping[str, Any], folder: Path) -> Member:
    names = changeable(config)
    for key in row:
        if key not in names:
            flat = config.flat()
            why = "changes the program that all members share" if key in flat else "is no setting"
            raise UsageError(
                f"--population: {key} {why}; members differ in {', '.join(names)}."
                f"{'' if key in flat else meant(key, names)}"
            )
    values: dict[str, Any] = dict(row)
    if isinstance(config.hyper, OwnConfig):
        own = {key: values.pop(key) for key in row if key != "seed"}
        values["hp"] = dict(config.hyper.hp) | own
    run_dir = str(folder / FOLDER / name)
    made = revise(config, values | {"run_dir": run_dir})
    before, after = present(config.hyper), present(made.hyper)
    if before != after:
        key = next(iter(before ^ after))
        raise UsageError(
            f"--population: {key} is left out by some members and given by others, which are two "
            "programs: train them separately."
        )
    _refuse_name(name, "--population")
    return Member(name, made)


def _refuse_name(name: str, where: str) -> None:
    """Refuse a member's name that is not a plain folder name.

    Args:
        where: what names the member, for the message.
    """
    if not nofollow.is_plain_name(name):
        raise UsageError(
            f"{where}: {name[:100]!r} is not a plain folder name, which a member's name has to be: "
            "letters, digits and _ . = + , @ -, not beginning with a dot."
        )


def _grid(words: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """The rows of a grid, named by the texts of their values."""
    axes = parse_grid(words, "--population")
    return [
        ("_".join(f"{key}={text}" for key, (text, _) in zip(axes, chosen, strict=True)),
         {key: value for key, (_, value) in zip(axes, chosen, strict=True)})
        for chosen in itertools.product(*(axis.items() for axis in axes.values()))
    ]  # fmt: skip


def _listed(file: Path) -> list[tuple[str, dict[str, Any]]]:
    """A file's tables, one a member, by their names."""
    tables = load_file(str(file), "--population")
    for name, row in tables.items():
        if not isinstance(row, dict):
            raise UsageError(
                f"--population {file}: write a table for each member, [NAME] and its settings; "
                f"{name[:100]!r} is none."
            )
        _refuse_name(name, f"--population {file}")
    return [(name, dict(row)) for name, row in tables.items()]


@contextmanager
def held(folder: Path, resume: bool) -> Iterator[Path]:
    """Hold a population's folder while its members are chosen and trained, as `RunFolder` holds a
    run's. The folder of a new population is made, and removed if nothing has begun in it.

    Raises:
        UsageError: it holds no population to resume, or is none for a new one.
        FlatoutError: it is in use by another process, or not writable.
    """
    _refuse_unfit(folder, resume)
    with ExitStack() as stack:
        with writing(folder):
            with nofollow.folder(folder, 0, make=True):
                pass
            try:
                lock = stack.enter_context(closing(locks.Lock(folder / locks.LOCK)))
            except locks.InUseError as error:
                raise FlatoutError(
                    f"the population's folder {folder} is in use by another process{error.owner}."
                ) from None
        _refuse_unfit(folder, resume)  # by the process that held the lock until now
        with writing(folder):
            if not os.fstat(lock.fileno()).st_size:
                lock.file.write(MARK)
                lock.file.flush()
        try:
            yield folder
        finally:
            with suppress(OSError):  # others' files are in it, or it is gone
                if {POPULATION, FOLDER, GROUPS}.isdisjoint(os.listdir(folder)):
                    lock.remove()
                    folder.rmdir()


@contextmanager
def held_unused(base: Path) -> Iterator[Path]:
    """Hold the folder of a new population whose name the user has not given, as `held` does: this
    one, or with a number at its end if there is something already, or another begins there."""
    with ExitStack() as stack:

        def opens(path: Path) -> Path:
            stack.enter_context(held(path, False))
            return path

        yield open_unused(base, opens)


def _refuse_unfit(folder: Path, resume: bool) -> None:
    if not resume:
        refuse_strange(folder)
    elif not (folder / POPULATION).is_file():
        raise UsageError(without_settings(folder, POPULATION))


def refuse_strange(folder: Path) -> None:
    """Refuse a folder for a new population that holds a run or a population, or in which files or
    folders have the names of one's.

    Raises:
        UsageError: it does.
    """
    refuse_taken(folder)
    lock, content = folder / locks.LOCK, None
    with suppress(OSError):
        content = nofollow.read(lock, 1, len(MARK))
    if content == MARK:  # of a population that ended before its settings were here
        return
    for name in (FOLDER, GROUPS, *CURVES):
        if os.path.lexists(folder / name):
            raise UsageError(
                f"{folder / name} does not belong to a population of Flatout, and a new one "
                "would write into it; choose another folder, or move it away."
            )
    if os.path.lexists(lock) and content != b"":  # empty: it is just being made
        raise UsageError(
            f"{lock} does not belong to a population of Flatout; choose another folder, or move "
            "it away."
        )


def save(
    folder: Path, config: TrainConfig, rows: Sequence[Member], strategy: Strategy,
    again: bool = False,
) -> None:  # fmt: skip
    """Write `POPULATION`, signed with this user's key.

    Args:
        config: what the members have in common: all settings but those of `changeable`.
        again: whether the folder holds this population, whose settings are replaced.

    Raises:
        UsageError: the folder holds a run or a population.
        FlatoutError: it cannot be written.
    """
    if not again:
        refuse_taken(folder)
    common = config.flat()
    own = {
        member.name: {
            key: value for key, value in member.config.flat().items()
            if value != common[key] and key != "run_dir"
        }
        for member in rows
    }  # fmt: skip
    values = {"format": FORMAT, "algorithm": config.algorithm, "settings": common,
              "members": own,
              "strategy": {"name": strategy.name, "size": strategy.size}}  # fmt: skip
    values[signing.CODE] = code_of_run(config)
    with writing(folder):
        with nofollow.folder(folder, 0, make=True):
            pass
        nofollow.replace(
            folder / POPULATION,
            (json.dumps(signing.signed(signing.RUN, values), indent=2)).encode(),
        )


def load(
    folder: Path, consent: Consent, changes: Mapping[str, Any]
) -> tuple[list[Member], Strategy]:
    """The members of a population's folder, and how they share the machine.

    Args:
        consent: the user's to code that the settings name.
        changes: settings that a resume changes for all.

    Raises:
        CheckpointError: the file is damaged, or names code without consent.
    """
    path = folder / POPULATION
    config, values = load_values(folder, consent, POPULATION)
    try:
        rows = {str(name): dict(row) for name, row in values["members"].items()}
        told = values["strategy"]
        strategy = Strategy(str(told["name"]), int(told["size"]))
        if strategy.name not in NAMES or not 1 <= strategy.size <= MOST:
            raise ValueError(f"the strategy {str(told)[:100]} is impossible")
        known = {*changeable(config), "hp"}
        for name, row in rows.items():
            if not nofollow.is_plain_name(name) or not row.keys() <= known:
                raise ValueError(f"the member {name[:100]!r} is impossible")
        found = [
            Member(name, revise(config, row, changes, {
                "run_dir": str(folder / FOLDER / name)}))
            for name, row in rows.items()
        ]  # fmt: skip
        return found, strategy
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise CheckpointError(f"{path} is corrupt: {damage(error)}") from error
