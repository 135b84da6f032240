"""What planning has measured of a machine itself, whatever the run. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from flatout.errors import UsageError
from flatout.planning.stages import Stages


@dataclass(frozen=True)
class Machine:
    """Costs that belong to a machine rather than to a run.

    Attributes:
        trip: seconds of the way to an actor process and back.
        full: relative speed of a core while all of them work.
        iteration: seconds of an iteration's dispatches, publishing and bookkeeping, those within
            learning too: the difference between many short turns and few long ones of equal work.
        grows: share of a call that chooses actions which grows with the number of vectors;
            `grows_images` with the number of images.
        cores: of the machine; `full` is of all of them.
        where: the machine, and how this was measured.
    """

    trip: float
    full: float
    iteration: float
    grows: float
    grows_images: float
    cores: int = 2
    where: str = ""

    def scaled(self, factor: float) -> Machine:
        """With costs of sharing so many times as large."""
        full = 1.0 / (1.0 + (1.0 / self.full - 1.0) * factor)
        return replace(self, trip=self.trip * factor, full=full,
                       grows=min(self.grows * factor, 1.0))  # fmt: skip

    def updated(self, stages: Stages, where: str) -> Machine:
        """With what the planning of another run has measured."""
        more: dict[str, Any] = {"where": where, "cores": stages.cores}
        if len(stages.local) > 0:
            more |= {"trip": stages.trip, "full": stages.full}
        return replace(self, **more)

    @staticmethod
    def from_json(values: Any) -> Machine:
        """From a file's object.

        Raises:
            UsageError: it is none, or a number in it is impossible.
        """
        try:
            machine = Machine(**values)
            numbers = (machine.trip, machine.iteration, machine.grows, machine.grows_images)
            possible = all(0.0 <= number < 10.0 for number in numbers) and 0.1 < machine.full <= 1.0
        except TypeError as error:
            raise UsageError(f"these are no machine's costs ({error}).") from error
        if not possible:
            raise UsageError("these are no machine's costs: a number is impossible.")
        return machine


SHIPPED = Machine(
    trip=1.0e-4, full=0.88, iteration=4e-4, grows=0.1, grows_images=0.7,
    where="AMD EPYC, 2 cores; medians of the stages of benchmarks/plan.py",
)  # fmt: skip
"""Measured where Flatout is developed: used until planning has measured this machine."""
