"""The one narrow interface of every sampler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from flatout.errors import CheckpointError
from flatout.spans import Work
from flatout.types import Episode, Trajectory

ENVIRONMENTS = "environments/"
"""Prefix of the arrays, in a sampler's state, of environments that are nothing but arrays."""

Restart = tuple[int, np.ndarray, np.ndarray]
"""An environment that began anew out of turn: its number, its last observation, the new first."""


class Sampler(ABC):
    """Produces trajectories with the parameters that its policies hold.

    Attributes:
        episodes: that ended within the last trajectory.
        restarted: in the last `restore`, or in the last trajectory's first step.
        lost: environments that were ever lost with their processes.
    """

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self.restarted: list[Restart] = []
        self.lost = 0

    @property
    @abstractmethod
    def steps_collected(self) -> int:
        """Environment steps in the last trajectory, summed over environments."""

    @abstractmethod
    def start(self) -> None:
        """Reset every environment."""

    @abstractmethod
    def collect(self) -> Trajectory:
        """One trajectory; its arrays are valid until its buffer is used again."""

    @abstractmethod
    def commit(self) -> None:
        """The trajectory will be learned from: `state` moves on to its end."""

    def work(self) -> dict[str, Work]:
        """What its processes have done so far, by name; empty where it has none."""
        return {}

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """JSON-compatible state and NumPy arrays, at the last committed trajectory's end."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> list[str]:
        """Take over such a state; returns sentences about what could not be restored."""

    @abstractmethod
    def close(self) -> None:
        """Close the environments."""


def check_counts(state: dict[str, Any], num_envs: int) -> None:
    """Refuse a sampler's state of other environments, or whose counts no run can have come to.

    Args:
        state: as `Sampler.state` gave it.
        num_envs: N.

    Raises:
        CheckpointError: the first impossible one.
    """
    if "episode" not in state:
        raise CheckpointError(
            "it was saved with environments that step on a device: resume it with sampler=device."
        )
    for name in ("actions", "episode", "origin", "obs"):
        if len(state[name]) != num_envs:
            raise CheckpointError(
                f"it was saved with {len(state[name])} environments, not {num_envs}."
            )
    counts = {"steps": [state["steps"]]}
    counts |= {name: state[name] for name in ("episode", "origin")}
    for name, values in counts.items():
        for value in values:
            if type(value) is not int or not 0 <= value < 2**53:
                raise CheckpointError(f"its sampler's {name} {str(value)[:40]} is impossible.")
