"""The command line of ``flatout fleet``: a sweep from its file or flags, to its table."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from flatout.cli.arguments import take, take_all, train_config
from flatout.cli.fleet_screen import Screen, result
from flatout.config.schema import TrainConfig
from flatout.config.settings import with_run
from flatout.errors import Interrupt, UsageError
from flatout.fleet.sweep import engine
from flatout.fleet.sweep.fleet import FAILED, Fleet, Folder
from flatout.fleet.sweep.plan import (
    SECTIONS,
    Fixed,
    Group,
    grid_of,
    groups,
    populations,
    read,
    seeds_of,
    trials,
)
from flatout.fleet.sweep.slots import Slots
from flatout.output import printable, say
from flatout.storage.run_folder import default_folder
from flatout.storage.trust import Consent, keep_out

HELP = """\
usage: flatout fleet SWEEP.toml [--run-dir DIR] [settings of train]
       flatout fleet ALGORITHM --grid KEY=V1,V2 ... --seeds N [--run-dir DIR] [settings of train]
       flatout fleet --resume DIR

Trains every configuration with every seed, as many at a time as gain anything, and ranks the
configurations by the interquartile mean of their seeds' last evaluations. Each trial is an ordinary
run folder, DIR/TRIAL, and the run that `flatout train` would make with its settings.

  --grid KEY=V1,V2 ...   every combination of these values
  --seeds N              so many seeds for each configuration, from --seed on
  --resume DIR           go on with a fleet that was stopped or killed; failed trials once more
  --at-once N            so many trials at a time, instead of measuring how many gain anything
  --strategy NAME        of trials that one program can train (--env-backend device):
                         auto, together, spread; apart: each in a process like all others
  --quiet                the table alone
  --json                 the result as one JSON object, alone on stdout

  flatout fleet ppo --env CartPole-v1 --grid learning-rate=1e-4,3e-4 --seeds 5
  flatout fleet sweep.toml --steps 100000
"""

STRATEGIES = ("auto", "together", "spread", "apart")


def fleet(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    if not argv or any(word in argv for word in ("-h", "--help")):
        print(HELP, end="")
        return 0 if argv else 2
    at_once, argv = take(argv, "--at-once")
    strategy, argv = take(argv, "--strategy")
    resumed, argv = take(argv, "--resume")
    as_json, quiet = "--json" in argv, "--quiet" in argv
    argv = [word for word in argv if word not in ("--json", "--quiet")]
    if at_once is not None and not (at_once.isdecimal() and 1 <= int(at_once) <= 1024):
        raise UsageError(f"--at-once {at_once}: a number of trials from 1 to 1024.")
    if strategy is not None and strategy not in STRATEGIES:
        raise UsageError(f"--strategy {strategy[:100]} is none of {', '.join(STRATEGIES)}.")
    if resumed is None:
        base, seeds, found, path = _new(argv)
        shared = {}
        if strategy != "apart":
            several = [trial for group in found for trial in trials(base, group, seeds)]
            shared = populations(several, _parts())
        folder = Folder(path, False)
    else:
        trust = "--trust" in argv
        if [word for word in argv if word != "--trust"] or strategy is not None:
            raise UsageError(
                "--resume goes on with the sweep that there is; leave out "
                f"{' '.join([*argv, *(['--strategy'] if strategy else [])])}."
            )
        path = Path(resumed)
        keep_out(path)
        folder = Folder(path, True)
    with closing(folder):
        if resumed is None:
            folder.save(base, seeds, found, shared, strategy or "auto")
        else:
            base, seeds, found, shared, strategy = folder.load(Consent(trust=trust))
        return _run(folder, base, seeds, found, shared, strategy or "auto", at_once, quiet, as_json)


def _parts() -> int:
    from flatout.hardware.inventory import inventory

    hardware = inventory()
    return len(hardware.usable_gpus) or hardware.cores


def _new(argv: list[str]) -> tuple[TrainConfig, tuple[int, ...], list[Group], Path]:
    """What the words of a new fleet mean: common settings, seeds, configurations, folder."""
    words, argv = take_all(argv, "--grid")
    count, argv = take(argv, "--seeds")
    sections, where, common = dict[str, Any](), "--grid", None
    if argv and argv[0].endswith(".toml"):
        where = argv.pop(0)
        values = read(Path(where))
        sections = {name: values.pop(name) for name in SECTIONS if name in values}
        common = where, values
        algorithm = values.get("algorithm")
        if not isinstance(algorithm, str) and "preset" not in values:
            raise UsageError(f'{where} names no algorithm; write algorithm = "ppo", say.')
        if "preset" in values:
            argv = ["--preset", str(values.pop("preset")), *argv]
    if words:
        sections["grid"] = grid_of(words)
        where = "--grid" if common is None else where
    given = {word.partition("=")[0] for word in argv} | set(() if common is None else common[1])
    try:
        base, resumed = train_config(argv, common)
    except UsageError as error:
        raise UsageError(str(error) if common is None else f"{where}: {error}") from None
    assert not resumed
    if base.hyper.acts and not base.env.env:
        raise UsageError("no environment: pass --env ID, or write env = ... in the sweep's file.")
    if not given & {"--eval-every", "eval_every"} and base.run.eval_every == 0:
        base = with_run(base, eval_every=base.run.steps)  # each trial is evaluated at its end
    path = base.run.run_dir
    if path is None:
        path = str(default_folder(base)).replace("runs/", "runs/fleet-", 1)
    base = with_run(base, run_dir=None, quiet=False, json=False)
    if count is not None:
        sections["seeds"] = int(count) if count.isdecimal() else count
    seeds = seeds_of(sections.pop("seeds", 1), base.run.seed)
    return base, seeds, groups(base, sections, where), Path(path)


def _run(
    folder: Folder, base: TrainConfig, seeds: Sequence[int], found: list[Group],
    shared: dict[str, list[str]], strategy: str, at_once: str | None, quiet: bool, as_json: bool,
) -> int:  # fmt: skip
    from rich.console import Console

    from flatout.fleet.sweep.objective import iqm
    from flatout.hardware.inventory import inventory

    console, hardware = Console(stderr=as_json), inventory()
    jobs = len(found) * len(seeds)
    per = 4
    cards = engine.cards(hardware, per)
    most = min(jobs, per * len(cards) if cards else 2 * hardware.cores)
    cores = len(cards) or hardware.cores
    slots = Slots(most, cores, hardware.memory_available_mb)
    if at_once is not None:
        slots = Slots(int(at_once), cores, hardware.memory_available_mb, int(at_once))
    local = engine.Local(folder.descriptor, cards)
    made = Fleet(folder.path, base, seeds, Fixed(found), local, slots, iqm, shared, strategy)
    screen = Screen(made, console, quiet)
    signum = None
    try:
        local.warm(min(cores, most))
        made.run(screen.look)
    except Interrupt as stop:
        signum = stop.signum
        screen.note("stopping: every trial saves its last iteration's boundary")
        made.stop(engine.wait_until)
    finally:
        local.close()
        screen.close()
    return result(made, console, quiet, as_json, signum)
