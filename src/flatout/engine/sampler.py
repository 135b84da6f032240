"""The interface of every sampler. Schedules collect trajectories through it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from flatout import tree
from flatout.errors import CheckpointError
from flatout.spans import NO_RESETS, Work
from flatout.types import Episode, Obs, Restart, Trajectory

if TYPE_CHECKING:
    from flatout.config.schema import TrainConfig

ENVIRONMENTS = "environments/"
"""Prefix, in a sampler's state, of the arrays of device environments, whose state is all arrays."""


class Sampler(ABC):
    """A source of trajectories. It owns environments on the host, whose policies hold the
    parameters; the state of environments on a device is the caller's.

    Attributes:
        episodes: the episodes that ended within the last trajectory.
        restarted: environments restarted by the last `restore`, or before the last trajectory's
            first step.
        restart_reasons: by reason, the environments that the last `restore` restarted, with the
            numbers of their episodes.
        lost: how many times an environment was lost with its process.
    """

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self.restarted: list[Restart] = []
        self.restart_reasons: dict[str, list[tuple[int, int]]] = {}
        self.lost = 0

    @property
    @abstractmethod
    def steps_collected(self) -> int:
        """The environment steps in the last trajectory, summed over environments."""

    @property
    def obs_shapes(self) -> Obs | None:
        """A tree with the shapes and dtypes of one environment's observation; None without
        environments."""
        return None

    @abstractmethod
    def start(self) -> Any:
        """Reset every environment; return the state of device environments, else None."""

    @abstractmethod
    def collect(self, environments: Any = None, params: Any = ()) -> tuple[Trajectory, Any]:
        """Collect a trajectory; its arrays are valid until its buffer is used again.

        Args:
            environments: the state of device environments; None for others.
            params: packed acting parameters for these.

        Returns:
            The trajectory, and the state of device environments after it, else None.
        """

    def commit(self) -> None:  # noqa: B027 - there is nothing to do for device environments
        """Accept the last trajectory for learning: `state` moves to its end on the host."""

    def work(self) -> dict[str, Work]:
        """Return the work of its processes so far, by name; empty if it has none."""
        return {}

    def traffic(self) -> dict[str, float]:
        """Return the bytes and times of trajectories from other machines, for `flow` in a run's
        summary; empty if none came from there."""
        return {}

    def stats(self) -> dict[str, float]:
        """Return statistics of the environments of this process, for `flow` in the run's
        summary."""
        works = self.work().values()
        resets = NO_RESETS
        for work in works:
            resets = resets.plus(work.resets)
        found: dict[str, float] = {"environments_lost": self.lost}
        if resets.number:
            found["env_s"] = sum(work.seconds.get("env", 0.0) for work in works)
            found |= {"reset_s": resets.seconds, "reset_wait_s": resets.waited}
        if spares := sum(work.spares for work in works):
            found |= {"spare_envs": spares, "spare_mb": sum(work.spare_mb for work in works)}
        return found

    @abstractmethod
    def state(self, environments: Any = None) -> dict[str, Any]:
        """Return JSON-compatible state and NumPy arrays at the last committed trajectory's end, or
        of these device environments."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> list[str]:
        """Restore a result of `state`; return sentences about what could not be restored."""

    def environments(self, state: dict[str, Any]) -> Any:
        """Return the state of device environments from a result of `state`; None for others."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Close the environments."""


def lives_terminate(config: TrainConfig) -> bool:
    """Return whether a lost life is a terminal step of trajectories.

    For an algorithm without gradients it never is: nothing is bootstrapped there, and the return of
    a member of a population is divided by the episodes that ended, which are whole games.
    """
    return config.env.terminal_on_life_loss and config.hyper.differentiates


def check_counts(state: dict[str, Any], num_envs: int) -> None:
    """Refuse a sampler's state with another number of environments or with impossible counts.

    Args:
        state: a result of `Sampler.state`.
        num_envs: N.

    Raises:
        CheckpointError: names the first mismatch or impossible count.
    """
    if "episode" not in state:
        raise CheckpointError(
            "it was saved with environments that step on a device: resume it with sampler=device."
        )
    sizes = [len(state[name]) for name in ("actions", "episode", "origin")]
    for size in [*sizes, *map(len, tree.leaves(state["obs"]))]:
        if size != num_envs:
            raise CheckpointError(f"it was saved with {size} environments, not {num_envs}.")
    counts = {"steps": [state["steps"]]}
    counts |= {name: state[name] for name in ("episode", "origin")}
    for name, values in counts.items():
        for value in values:
            if type(value) is not int or not 0 <= value < 2**53:
                raise CheckpointError(f"its sampler's {name} {str(value)[:40]} is impossible.")
