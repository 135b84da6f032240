"""Planning's measurements of a machine, which do not depend on the run, and where they are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta

from flatout.planning.hosts import ASSUMED, Network
from flatout.planning.predict import crowded
from flatout.planning.stages import Count, Stages
from flatout_explain.files.kept_numbers import keep_number, numbers
from flatout_explain.hardware.running_cores import RunningCores

Cost = Annotated[float, Meta(ge=0.0, lt=10.0)]


@dataclass(frozen=True)
class Machine:
    """Costs that belong to a machine rather than to a run.

    Attributes:
        trip: seconds of the way to an actor process and back.
        iteration: seconds of an iteration's dispatches, publishing and bookkeeping, those within
            learning too: the difference between many short turns and few long ones of equal work.
        cores: of the machine.
    """

    trip: Cost
    iteration: Cost
    cores: Count = 2


SHIPPED = Machine(trip=1.0e-4, iteration=4e-4)
"""Medians of the stages of benchmarks/plan.py on an AMD EPYC with 2 cores, where Flatout is
developed: used until planning has measured this machine."""


def this_machine(cores: int) -> Machine:
    """Return the measurements of this machine with this number of cores, or `SHIPPED`."""
    trip_us = numbers().get(_key(cores))
    return SHIPPED if trip_us is None else replace(SHIPPED, trip=trip_us / 1e6, cores=cores)


def keep_machine(stages: Stages) -> None:
    """Keep what the planning of a run has measured of this machine."""
    if stages.local:
        keep_number(_key(stages.cores), stages.trip * 1e6)


def with_running_cores(stages: Stages, found: RunningCores) -> tuple[Stages, str]:
    """Return the stages with the number of cores that run at once, and with their speed; and a
    sentence if these are fewer than the machine lists, or empty."""
    note = ""
    if found.missing:
        stages = replace(stages, running=found.at_once)
        note = (
            f"{found.sentence()} Speeds are predicted for these cores; after a change, --remeasure "
            "plans again."
        )
    busy = min(float(found.asked), stages.at_once)
    return crowded(stages, busy, found.work / max(found.at_once, 1e-9)), note


WAY, CARRIES = "microseconds of a request to a cluster", "bytes per second from a cluster"
"""Keys of the kept numbers of the network that was measured last."""


def known_network() -> Network:
    """Return the network that was last measured from this machine, or `ASSUMED`."""
    found = numbers()
    if not found.get(CARRIES):
        return ASSUMED
    where = "by the last run on a cluster from this machine"
    return Network(found.get(WAY, 0.0) / 1e6, found[CARRIES], where)


def keep_network(flow: Mapping[str, float]) -> None:
    """Keep the network that a run on a cluster has measured, from `flow` in its summary."""
    if rate := flow.get("network_bytes_per_s"):
        keep_number(WAY, flow["network_way_s"] * 1e6)
        keep_number(CARRIES, rate)


def _key(cores: int) -> str:
    return f"microseconds to an actor process and back, {cores} cores"
