"""Plain values that every room speaks in; shapes are stated here once.

Dimensions: ``T`` steps of a trajectory, ``N`` environments, ``B`` a batch, ``C`` kept final
observations. All arrays may be NumPy or JAX arrays; named tuples are pytrees as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

Array = Any  # numpy.ndarray | jax.Array; JAX is not imported on the ground floor
Device = Any  # jax.Device


@dataclass(frozen=True)
class ObservationSpec:
    """One environment's observation: a vector ``[D]`` or an image ``[H, W, channels]``.

    Attributes:
        shape: shape of one observation.
        dtype: NumPy dtype name, for example ``"float32"`` or ``"uint8"``.
        high: largest value of an integer observation (255 for pixels), by which networks scale it;
            None for floating point observations, which are fed as they are.
    """

    shape: tuple[int, ...]
    dtype: str
    high: int | None = None

    @property
    def is_image(self) -> bool:
        """Whether the observation has rows, columns and channels."""
        return len(self.shape) == 3


@dataclass(frozen=True)
class DiscreteSpec:
    """Actions ``start, ..., start + n - 1``; algorithms see ``0, ..., n - 1``."""

    n: int
    start: int = 0


@dataclass(frozen=True)
class ContinuousSpec:
    """Actions in a box, flattened to ``[A]``; bounds are tuples of length ``A``."""

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """A, the number of action components."""
        return len(self.low)


ActionSpec = DiscreteSpec | ContinuousSpec


class Trajectory(NamedTuple):
    """T steps of N environments, with what is needed to bootstrap.

    Attributes:
        obs: ``[T, N, ...]`` raw observations, before each step.
        actions: ``[T, N]`` int32 or ``[T, N, A]`` float32: what the environment was given.
        rewards: ``[T, N]`` float32.
        terminated: ``[T, N]`` bool; no bootstrap after it.
        truncated: ``[T, N]`` bool; bootstrap from the final observation.
        last_obs: ``[N, ...]`` observations after the last step (of the next episode, where one
            ended with that step).
        final_obs: ``[C, ...]`` observations with which truncated episodes ended.
        final_index: ``[C]`` int32, ``t * N + n`` of each final observation, ``T * N`` for unused.
        extras: what `act` returned beside the action, each ``[T, N, ...]``.
        valid: ``[T, N]`` bool, or None where every step counts.
    """

    obs: Array
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    last_obs: Array
    final_obs: Array
    final_index: Array
    extras: dict[str, Array]
    valid: Array = None


class Episode(NamedTuple):
    """A finished episode: its environment, undiscounted raw return, and length in steps."""

    env: int
    episode_return: float
    length: int


@dataclass
class Metrics:
    """What one iteration did.

    Attributes:
        steps: environment steps taken, summed over environments.
        updates: gradient steps made.
        episodes: the episodes that ended, in the order of their ends.
        values: the algorithm's own scalars by name.
    """

    steps: int
    updates: int
    episodes: list[Episode] = field(default_factory=list[Episode])
    values: dict[str, float] = field(default_factory=dict[str, float])


@dataclass
class Snapshot:
    """All of a schedule's state at an iteration's boundary.

    Attributes:
        arrays: flat mapping from names to NumPy arrays.
        data: JSON-compatible counters and settings.
    """

    arrays: dict[str, Array]
    data: dict[str, Any]
