"""Planning's measurements of a machine, which do not depend on the run. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from msgspec import Meta

from flatout.planning.stages import Count, Stages

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

    def updated(self, stages: Stages, where: str) -> Machine:
        """With what the planning of another run has measured."""
        more: dict[str, Any] = {"where": where, "cores": stages.cores}
        if len(stages.local) > 0:
            more["trip"] = stages.trip
        return replace(self, **more)


SHIPPED = Machine(
    trip=1.0e-4, iteration=4e-4,
    where="AMD EPYC, 2 cores; medians of the stages of benchmarks/plan.py",
)  # fmt: skip
"""Measured where Flatout is developed: used until planning has measured this machine."""
