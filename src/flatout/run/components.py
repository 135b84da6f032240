"""The compiled components of one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatout.config.placement import DeviceName, Placement
from flatout.hardware.inventory import Hardware

if TYPE_CHECKING:
    from flatout.algorithms.base import Algorithm
    from flatout.run.classifier import Tester
    from flatout.run.evaluate import Evaluator
    from flatout.schedules.base import Schedule


@dataclass
class Components:
    """What a run is made of, compiled and ready to start.

    Attributes:
        placement: where they live.
        hardware: the machine.
        algorithm: the pure functions.
        schedule: the data flow.
        evaluator: plays evaluation episodes, or None.
        memory_mb: expected memory by device and what takes it, MiB.
        notes: sentences for the user.
    """

    placement: Placement
    hardware: Hardware
    algorithm: Algorithm
    schedule: Schedule
    evaluator: Evaluator | Tester | None
    memory_mb: dict[DeviceName, dict[str, float]]
    notes: list[str]

    def close(self) -> None:
        """Close all environments."""
        self.schedule.close()
        if self.evaluator is not None:
            self.evaluator.close()
