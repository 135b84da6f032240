"""The one narrow interface of every sampler."""

from __future__ import annotations

from typing import Any, Protocol

from flatout.types import Episode, Trajectory


class Sampler(Protocol):
    """Produces trajectories with the parameters that its policy holds."""

    episodes: list[Episode]
    """The episodes that ended within the last trajectory."""

    def collect(self) -> Trajectory:
        """One trajectory; its arrays are valid until the next call."""
        ...

    def commit(self) -> None:
        """The trajectory was learned from: `state` moves on to its end."""
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
