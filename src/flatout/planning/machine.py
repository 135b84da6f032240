"""What planning has measured of a machine itself, whatever the run. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from flatout.errors import UsageError
from flatout.planning.stages import Stages, misfit


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

    trip: float
    iteration: float
    cores: int = 2
    where: str = ""

    def updated(self, stages: Stages, where: str) -> Machine:
        """With what the planning of another run has measured."""
        more: dict[str, Any] = {"where": where, "cores": stages.cores}
        if len(stages.local) > 0:
            more["trip"] = stages.trip
        return replace(self, **more)

    @staticmethod
    def from_json(values: Any) -> Machine:
        """From a file's object.

        Raises:
            UsageError: it is none, or a number in it is impossible.
        """
        try:
            machine = Machine(**values)
            possible = all(0.0 <= cost < 10.0 for cost in (machine.trip, machine.iteration))
        except TypeError as error:
            raise UsageError(f"these are no machine's costs: {misfit(error)}.") from error
        if not possible:
            raise UsageError("these are no machine's costs: a number is impossible.")
        return machine


SHIPPED = Machine(
    trip=1.0e-4, iteration=4e-4,
    where="AMD EPYC, 2 cores; medians of the stages of benchmarks/plan.py",
)  # fmt: skip
"""Measured where Flatout is developed: used until planning has measured this machine."""
