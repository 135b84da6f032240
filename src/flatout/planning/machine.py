"""Planning's measurements of a machine, which do not depend on the run, and where they are kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta

from flatout.planning.stages import Count, Stages
from flatout_explain.files.kept_numbers import keep_number, numbers

Cost = Annotated[float, Meta(ge=0.0, lt=10.0)]


@dataclass(frozen=True)
class Machine:
    """Costs that belong to a machine rather than to a run.

    Attributes:
        trip: seconds of the way to an actor process and back.
        iteration: seconds of an iteration's dispatches, publishing and bookkeeping, those within
            learning too: the difference between many short turns and few long ones of equal work.
        cores: of the machine.
        where: the machine, and how this was measured.
    """

    trip: Cost
    iteration: Cost
    cores: Count = 2
    where: str = ""


SHIPPED = Machine(
    trip=1.0e-4, iteration=4e-4,
    where="AMD EPYC, 2 cores; medians of the stages of benchmarks/plan.py",
)  # fmt: skip
"""Measured where Flatout is developed: used until planning has measured this machine."""


def this_machine(cores: int) -> Machine:
    """Return the measurements of this machine with this number of cores, or `SHIPPED`."""
    trip_us = numbers().get(_key(cores))
    return SHIPPED if trip_us is None else replace(SHIPPED, trip=trip_us / 1e6, cores=cores)


def keep_machine(stages: Stages) -> None:
    """Keep what the planning of a run has measured of this machine."""
    if stages.local:
        keep_number(_key(stages.cores), stages.trip * 1e6)


def _key(cores: int) -> str:
    return f"microseconds to an actor process and back, {cores} cores"
