"""The command line of populations: ``flatout train ... --seeds 8``."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.cli.carried import differing
from flatout.config.schema import RESUMABLE, TrainConfig
from flatout.config.settings import revise
from flatout.errors import FlatoutError, UsageError, writing
from flatout.output import shell_word
from flatout.populations.members import (
    CURVES,
    Member,
    Strategy,
    held,
    held_unused,
    load,
    members,
    refuse_strange,
    save,
)
from flatout.storage.run_folder import POPULATION, load_config
from flatout.storage.trust import Consent
from flatout_explain.files import nofollow

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from flatout.populations.population import Population
    from flatout.run.interrupts import Interrupts

PLAIN_S = 5.0
SHOWN = 24
"""Maximum number of members that the display shows."""


def _named(config: TrainConfig, seeds: int | None, words: list[str], path: Path) -> list[Member]:
    """Return the members of a new population.

    Raises:
        UsageError: impossible values, or an algorithm without populations.
    """
    if not config.hyper.acts:
        raise UsageError(f"{config.algorithm} has no populations.")
    return members(config, seeds, words, path)


def _refuse_others(found: list[Member], wanted: list[Member]) -> None:
    """Refuse to continue a population with other members than the flags name.

    Raises:
        UsageError: the message names the first members, or settings of one, that differ.
    """
    there, asked = ({member.name for member in some} for some in (found, wanted))
    if there != asked:
        ours, theirs = (", ".join(sorted(x)[:3]) or "none" for x in (asked - there, there - asked))
        raise UsageError(
            f"--continue: the population there has other members: {theirs} there, {ours} here; "
            "give the same --seeds and --population, or another --run-dir."
        )
    now = {member.name: member.config for member in wanted}
    for member in found:
        names = [name for name in member.config.flat() if name not in RESUMABLE]
        if words := differing(member.config, now[member.name], names):
            raise UsageError(
                f"--continue: the member {member.name} has other settings there: {words}; give the "
                "same ones, or another --run-dir."
            )


def train(
    config: TrainConfig, seeds: int | None, words: list[str], asked: str | None, path: Path,
    resume: bool, interrupts: Interrupts, goes_on: bool = False,
    dry: bool = False,
) -> int:  # fmt: skip
    """Train all members, new ones or those of a folder; return the exit code.

    Args:
        seeds, words, asked: the values of ``--seeds``, ``--population`` and ``--strategy``.
        goes_on: ``--continue``: with `resume`, the flags must name the members in the folder.
        dry: ``--dry-run``: print the memory that the members would take, and train nothing.
    """
    named, path = path, path.absolute()  # an environment may change the working folder
    changes = dict[str, Any]()
    chosen = resume or config.run.run_dir is not None  # by the user
    if resume:
        changes = {n: v for n, v in config.flat().items() if n in RESUMABLE and n != "run_dir"}

    def find() -> tuple[list[Member], Strategy | None]:
        """Return the members, and the strategy with which they began."""
        if not resume:
            if chosen:
                refuse_strange(path)
            return _named(config, seeds, words, path), None
        if not goes_on and (seeds is not None or words):
            raise UsageError(
                "--resume continues the members in the folder; leave out --seeds and --population."
            )
        there = load(path, Consent(trust=True), changes)
        if goes_on:
            _refuse_others(there[0], _named(config, seeds, words, path))
        return there

    found, before = find()
    if dry:
        from flatout.cli.dry_run import dry_run

        with interrupts.discardable():
            return dry_run(found[0].config, len(found))
    with held(path, resume) if chosen else held_unused(path) as taken:
        if moved := taken != path:  # another was begun in the same second
            named, path = named.with_name(taken.name), taken
        if resume or moved:  # as they are now that no other process can change them
            found, before = find()
        return _train(config, asked, named, path, resume, interrupts, found, before, changes)


def _train(
    config: TrainConfig, asked: str | None, named: Path, path: Path, resume: bool,
    interrupts: Interrupts, found: list[Member], before: Strategy | None,
    changes: Mapping[str, Any],
) -> int:  # fmt: skip
    """Train members whose folder this process holds; return the exit code."""
    from rich.console import Console

    from flatout.engine.programs import Programs
    from flatout.output import print_json, say
    from flatout.populations.population import Population
    from flatout.populations.strategy import choose
    from flatout.run.screen import Screen

    console = Console(stderr=config.run.json)
    with closing(Screen(console, 0.0, PLAIN_S, quiet=config.run.quiet)) as screen:
        programs = Programs(several=True, announce=screen.note)
        if before is not None and (summaries := _summaries(found)):
            done = max(summary["steps"] for summary in summaries)
            screen.note(
                f"all {len(found)} members have made their {done:,} steps; to continue, name a "
                f"larger total: --steps {2 * done}"
            )
            population = Population(found, before, resume, interrupts, programs)
            for state, summary in zip(population.states, summaries, strict=True):
                state.sum_up(summary)
        else:
            with interrupts.discardable():
                configs = [member.config for member in found]
                strategy = choose(configs, asked or "auto", programs, before)
            screen.note(strategy.words(len(found)))
            if before is None:
                save(path, config, found, strategy)
            else:  # so that another resume keeps what this one changes
                common = revise(load_config(path, None, POPULATION), changes)
                save(path, common, found, before, again=True)
            population = Population(found, strategy, resume, interrupts, programs)

            def show() -> None:
                if screen.due():
                    screen.draw(_picture(population, screen.live))

            population.run(show)
    failed = [state for state in population.states if state.error]
    if config.run.json:
        print_json({s.member.name: s.summary for s in population.states})
    if not config.run.quiet:
        console.print(table(population, SHOWN))
        _draw(path, console)
    for state in failed:
        say(f"{state.member.name}: {state.error}")
    if population.defect is not None:
        raise population.defect
    if interrupts.signum is not None:
        say(f"interrupted, saved; resume with: flatout train --resume {shell_word(named)}")
        return 128 + interrupts.signum
    return 1 if failed else 0


def _summaries(found: list[Member]) -> list[dict[str, Any]]:
    """Return the members' summaries if all members have finished; otherwise nothing."""
    from flatout.storage.run_folder import final_summary

    every: list[dict[str, Any]] = []
    for member in found:
        summary = final_summary(Path(str(member.config.run.run_dir)))
        if summary is None or summary["steps"] < member.config.run.steps:
            return []
        every.append(summary)
    return every


def _picture(population: Population, live: bool) -> Table | str:
    """Return the members' progress as a table, or as a line."""
    if live:
        return table(population, SHOWN)
    states = population.states
    ended, steps = sum(bool(state.ended) for state in states), sum(state.steps for state in states)
    return f"{ended} of {len(states)} members have ended, {steps:,} steps"


def table(population: Population, most: int) -> Table:
    """Return a table of the members, the best first."""
    from rich.table import Column, Table

    from flatout.output import printable

    scores = [state.summary.get("last_eval_return") for state in population.states]
    score = "evaluation"
    if any(value is None for value in scores):  # not yet, or without --eval-every
        score, scores = "training return", [state.mean for state in population.states]
    # Ends of names tell members apart: seeds.
    made = Table(Column("member", overflow="fold"), box=None, padding=(0, 2), pad_edge=False)
    for heading in ("steps", score, "s", "ended"):
        made.add_column(heading, justify="left" if heading == "ended" else "right")
    pairs = zip(population.states, scores, strict=True)
    states = sorted(pairs, key=lambda pair: -math.inf if pair[1] is None else pair[1], reverse=True)
    for state, value in states[:most]:
        made.add_row(
            printable(state.member.name), f"{state.steps:,}",
            "" if value is None else f"{value:,.1f}", f"{state.wall_s:.1f}", state.ended,
        )  # fmt: skip
    if len(states) > most:
        made.add_row(f"... {len(states) - most} more")
    return made


def _draw(path: Path, console: Console) -> None:
    """Print the members' curves, and write them into the population's folder. An error becomes a
    note, because the members are trained and saved already."""
    from flatout.output import on_one_line, say
    from flatout.reports.curves import picture, readable

    try:
        made = picture(readable([path]))
    except FlatoutError:
        return  # no episode has ended
    console.print(str(made), highlight=False, soft_wrap=True, markup=False)
    drawn = importlib.util.find_spec("matplotlib") is not None
    for name in CURVES if drawn else CURVES[:1]:
        file = path / name
        try:
            with writing(file):
                nofollow.replace(file, made.content(file.suffix))
        except FlatoutError as error:
            say(f"{name} is left out: {error}")
            continue
        if file.suffix == ".svg":
            console.print(on_one_line(str(file)), highlight=False, soft_wrap=True, markup=False)
