"""The one narrow interface of every sampler."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from flatout.spans import Work
from flatout.types import Episode, Trajectory

Restart = tuple[int, np.ndarray, np.ndarray]
"""An environment that began anew out of turn: its number, its last observation, the new first."""


class Sampler(Protocol):
    """Produces trajectories with the parameters that its policies hold.

    Attributes:
        episodes: that ended within the last trajectory.
        restarted: in the last `restore`, or in the last trajectory's first step.
        lost: environments that were ever lost with their processes.
    """

    episodes: list[Episode]
    restarted: list[Restart]
    lost: int

    @property
    def steps_collected(self) -> int:
        """Environment steps in the last trajectory, summed over environments."""
        ...

    def start(self) -> None:
        """Reset every environment."""
        ...

    def collect(self) -> Trajectory:
        """One trajectory; its arrays are valid until its buffer is used again."""
        ...

    def commit(self) -> None:
        """The trajectory will be learned from: `state` moves on to its end."""
        ...

    def work(self) -> dict[str, Work]:
        """What its processes have done so far, by name; empty where it has none."""
        ...

    def state(self) -> dict[str, Any]:
        """JSON-compatible state and NumPy arrays, at the last committed trajectory's end."""
        ...

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Take over such a state; returns sentences about what could not be restored."""
        ...

    def close(self) -> None:
        """Close the environments."""
        ...
