"""What the trainer sees of the data flow."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from flatout.spans import Work
from flatout.types import Metrics, Snapshot


class Schedule(Protocol):
    """Owns the data flow; the trainer owns the run."""

    def start(self) -> None:
        """Draw the initial parameters and reset the environments."""
        ...

    def adopt(self, arrays: dict[str, np.ndarray]) -> None:
        """Start from learned arrays instead of fresh ones."""
        ...

    def advance(self, n: int) -> list[Metrics]:
        """Collect and learn `n` times."""
        ...

    @property
    def params(self) -> tuple[Any, ...]:
        """The newest actor parameters, bundled."""
        ...

    def stats(self) -> dict[str, float]:
        """What the flow did in this process, see the summary's `flow`."""
        ...

    def lanes(self) -> dict[str, Work]:
        """What the threads and processes beside this thread have done so far, by name."""
        ...

    def memory(self) -> dict[str, dict[str, float]]:
        """What lies on each device, see `flatout.learner.memory.live_mb`."""
        ...

    def snapshot(self) -> Snapshot:
        """All state at the last iteration's boundary."""
        ...

    def restore(self, snapshot: Snapshot) -> list[str]:
        """Take over such a state; sentences about what could not be restored."""
        ...

    def close(self) -> None:
        """Release environments and workers."""
        ...
