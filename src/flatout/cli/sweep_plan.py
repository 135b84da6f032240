"""Chooses the trials of ``flatout sweep``, and how many run at a time on this machine."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from flatout.config.schema import TrainConfig
from flatout.sweeps import plan
from flatout.sweeps.plan import SweepPlan

if TYPE_CHECKING:
    from rich.console import Console

    from flatout.hardware.inventory import Hardware
    from flatout.sweeps.slots import Slots

PER_CARD = 4
"""Maximum number of trials that share a GPU."""


def study_of(sweep: SweepPlan) -> plan.Study:
    """Return the search that proposes configurations.

    Raises:
        FlatoutError: Optuna's storage cannot be used, or its study is another sweep's.
    """
    if sweep.optuna is None:
        return plan.Fixed(sweep.groups)
    from flatout.sweeps.search import Search
    from flatout.sweeps.sweep import looks

    return Search(sweep.optuna, sweep.base, looks(sweep.base)[0], sweep.path)


def slots_of(sweep: SweepPlan, hardware: Hardware, at_once: int | None) -> Slots:
    """Return the number of trials at a time: given, measured before, or measured while they run."""
    from flatout.sweeps.measured import known
    from flatout.sweeps.slots import Slots

    member = {name for some in sweep.populations.values() for name in some}
    count = sweep.configurations * len(sweep.seeds)
    jobs = count - len(member) + len(sweep.populations)
    cards, cores = cards_of(sweep, hardware), cores_of(sweep, hardware)
    most, fewest = (PER_CARD * cards, cards) if cards else (2 * cores, cores)
    before = 0 if sweep.populations else known(sweep, hardware).at_once
    why = "measured here before"
    if sweep.ray is not None:  # the cluster assigns its places itself
        most = fewest = before = min(most, cores)
        why = "as many as the cluster has room for"
        memory = sweep.ray.cluster_resources().get("memory", 0)
        hardware = replace(hardware, memory_available_mb=int(memory) >> 20)
    if at_once is not None:
        most = before = at_once
        why = "as asked"
    return Slots(min(most, jobs), fewest, hardware.memory_available_mb, before, why)


def cores_of(sweep: SweepPlan, hardware: Hardware) -> int:
    """Return the number of cores of this machine, or of the cluster."""
    if sweep.ray is None:
        return hardware.cores
    return max(int(sweep.ray.cluster_resources().get("CPU", 1)), 1)


def cards_of(sweep: SweepPlan, hardware: Hardware) -> int:
    """Return the number of GPUs for trials, of this machine or of the cluster."""
    if not on_gpu(sweep.base):
        return 0
    if sweep.ray is None:
        return len(hardware.usable_gpus)
    return int(sweep.ray.cluster_resources().get("GPU", 0))


def on_gpu(base: TrainConfig) -> bool:
    """Return whether trials learn on GPUs, as far as their settings decide it."""
    from flatout.envs.source import EnvSource

    if base.run.placed is not None:
        return bool(base.run.placed.gpus)
    return EnvSource.of(base.env).atari or not base.hyper.acts


def dry_run(sweep: SweepPlan, hardware: Hardware, at_once: int | None, console: Console) -> int:
    """Print what would be trained, with the expected time and memory."""
    from rich.text import Text

    from flatout.cli.sweep_screen import clock
    from flatout.output import printable
    from flatout.sweeps import engine
    from flatout.sweeps.measured import Known, known, tried

    trials, slots, found = (
        sweep.trials or plan.trials(sweep.base, plan.Group("", {}), sweep.seeds),
        slots_of(sweep, hardware, at_once),
        Known() if sweep.populations else known(sweep, hardware),
    )
    times = sweep.configurations // max(len(sweep.groups), 1)  # Optuna's are not known yet
    count, steps = times * len(trials), times * sum(trial.steps for trial in trials)
    how = "measured here before"
    if not (kept := bool(found.rate)):
        how = "tried for a moment, alone"
        with open(os.devnull) as nothing:
            found = tried(trials[0], engine.Local(nothing.fileno(), []))

    def say(label: str, text: str) -> None:
        console.print(Text(f"{label:<9}{printable(text)}"), soft_wrap=True)

    say("TRIALS", f"{count:,}: {sweep.configurations:,} configurations x {len(sweep.seeds)} "
        f"seeds, {steps:,} steps, in {sweep.path}")  # fmt: skip
    for name, some in sweep.populations.items():
        say("", f"{name}: {len(some)} of them in one process (--strategy {sweep.strategy})")
    at_a_time = slots.limit if slots.settled else slots.cores
    if found.rate:
        measured = max(found.at_once, 1)
        together = min(at_a_time, count, measured if kept else count)
        rate = found.rate * together / measured
        seconds = steps / rate
        say("TIME", f"about {clock(seconds)}, {at_a_time} at a time ({how}: {rate:,.0f} steps/s)")
    else:
        say("TIME", "too short to be foreseen")
    say("MEMORY", f"about {found.each_mb:,.0f} MiB each of {slots.free_mb:,.0f} MiB ({how})")
    return 0
