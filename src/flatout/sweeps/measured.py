"""The speed and memory of a sweep's trials: from earlier sweeps, or from a short trial run."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import closing
from dataclasses import dataclass

from flatout.config.settings import changeable
from flatout.errors import FlatoutError
from flatout.hardware.inventory import Hardware
from flatout.run.auto import UNIMPORTANT, key
from flatout.sweeps.engine import Engine, Job
from flatout.sweeps.plan import SweepPlan, Trial
from flatout.sweeps.slots import LOOK_S
from flatout.sweeps.sweep import State, Sweep
from flatout_explain import output_file
from flatout_explain.files.kept_numbers import keep_number, numbers

DEVICES = ("placement", "devices", "virtual_devices")
"""Settings that name where trials run."""

TRY_S = 30.0
"""Maximum time in which a short trial run reaches its first updates."""


@dataclass(frozen=True)
class Known:
    """Measurements of trials with the same compiled program; 0 stands for an unknown value.

    Attributes:
        at_once: the number of trials at a time that is fastest.
        rate: steps per second of these trials together.
        each_mb: MiB of each process.
    """

    at_once: int = 0
    rate: float = 0.0
    each_mb: float = 0.0


def _names(plan: SweepPlan, hardware: Hardware) -> list[str]:
    """Return the names of the kept numbers of a sweep: of its devices and of all programs that its
    trials compile."""
    base, run = plan.base, plan.base.run
    same = {*changeable(base), *UNIMPORTANT} - set(DEVICES)
    rows = [group.row for group in plan.groups]
    rows += [] if plan.optuna is None else [plan.optuna["space"]]
    differing = {
        json.dumps({name: v for name, v in row.items() if name not in same}, sort_keys=True,
                   default=str)
        for row in rows
    }  # fmt: skip
    own = [run.placement.strip(), run.devices, run.virtual_devices, sorted(differing - {"{}"})]
    text = json.dumps([key(base, hardware, changeable(base)), own])
    shape = hashlib.sha256(text.encode()).hexdigest()[:24]
    return [f"{shape} sweep {what}" for what in ("at once", "rate", "MiB")]


def known(plan: SweepPlan, hardware: Hardware) -> Known:
    """Return the measurements of earlier sweeps like this one on this machine."""
    kept = {} if plan.base.run.remeasure else numbers()
    at_once, rate, each = (kept.get(name, 0.0) for name in _names(plan, hardware))
    return Known(int(at_once), rate, each)


def keep(plan: SweepPlan, sweep: Sweep, hardware: Hardware) -> None:
    """Save the measurements of a sweep, if it made any that hold for others.

    They do not if the number of trials or the free memory limited how many ran at a time, nor if
    trials were trained as populations.
    """
    slots = sweep.slots
    few = slots.limit >= plan.configurations * len(plan.seeds) or bool(slots.short_of)
    if few or plan.populations:
        return
    if slots.settled and not slots.known and slots.limit in slots.rates:
        values = (slots.limit, slots.rates[slots.limit], slots.each_mb)
        for name, value in zip(_names(plan, hardware), values, strict=True):
            keep_number(name, value)


def tried(trial: Trial, engine: Engine) -> Known:
    """Train one trial briefly in a temporary folder, and return its measurements.

    Raises:
        FlatoutError: the trial fails; with its message.
    """
    with (
        output_file.temporary_folder("flatout-sweep-") as folder,
        closing(engine),  # before the folder goes
    ):
        state, each, until = State(trial, folder), 0.0, time.monotonic() + TRY_S
        began: tuple[float, int] | None = None
        state.begin(time.monotonic())
        engine.start(Job(trial.name, (trial,), str(folder / "trial")))
        while (now := time.monotonic()) < until:
            for event in engine.poll(0.1):
                if "error" in event:
                    raise FlatoutError(str(event["error"]))
                if "ended" in event or "done" in event:
                    state.steps, until = int(event.get("steps", state.steps)), 0.0
                else:
                    state.hear(event, now)
                    each = max(each, float(event["peak_mb"]))
                    if began is None and state.steady:
                        began = now, state.steps
            if began is not None and now - began[0] > 2 * LOOK_S:
                until = 0.0
        if began is None or state.steps == began[1]:
            return Known(each_mb=each)
        return Known(1, (state.steps - began[1]) / (time.monotonic() - began[0]), each)
