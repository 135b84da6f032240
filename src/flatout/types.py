"""Plain types that all modules share, with their arrays' shapes.

Dimensions: ``T`` steps of a trajectory, ``N`` environments, ``B`` a batch, ``C`` final
observations. All arrays may be NumPy or JAX arrays; named tuples are pytrees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

Array = Any  # numpy.ndarray | jax.Array, without importing JAX
Device = Any  # jax.Device


@dataclass(frozen=True)
class ObservationSpec:
    """One environment's observation: a vector ``[D]`` or an image ``[H, W, channels]``."""

    shape: tuple[int, ...]
    dtype: str  # NumPy's name of it, for example "float32" or "uint8"
    # Largest value of an integer observation (255 for pixels), by which networks divide it; None
    # for floating point observations, which are not scaled.
    high: int | None = None
    # Frames in an image as groups of channels, the newest last; replay keeps each frame once.
    stack: int = 1
    stack_pad: str = "first"  # an episode's first stacks repeat its first frame, or hold "zeros"

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


@dataclass(frozen=True)
class UserCode:
    """What a Python program passes as it is, where the command has a name for it."""

    env: Any = None  # an environment object, or a function that makes one
    network: Any = None  # a custom torso
    algorithm: Any = None  # a function that makes the algorithm (see `flatout.Algorithm`)


NAMED = UserCode()
"""Everything by its name."""


class Finals(NamedTuple):
    """The last observations of truncated episodes, in arrays with room for C of them.

    Attributes:
        obs: ``[C, ...]``, raw.
        index: ``[C]`` int32, the position ``t * N + n`` of the step that each follows, ``T * N`` if
            unused.
    """

    obs: Array
    index: Array


class Trajectory(NamedTuple):
    """T steps of N environments, with the observations for bootstrapping.

    Attributes:
        obs: ``[T, N, ...]`` raw observations, before each step.
        actions: ``[T, N]`` int32 or ``[T, N, A]`` float32, as passed to the environment.
        rewards: ``[T, N]`` float32.
        terminated: ``[T, N]`` bool; no bootstrap after it.
        truncated: ``[T, N]`` bool; bootstrap from the final observation.
        last_obs: ``[N, ...]`` observations after the last step (the next episode's first, if one
            ended with that step).
        finals: last observations of truncated episodes.
        extras: other outputs of `act`, each ``[T, N, ...]``.
        valid: ``[T, N]`` bool, or None if every step counts.
        ended: ``[T, N]`` bool, whether the episode ended with that step (a lost life does not end
            it); None for algorithms without replay.
    """

    obs: Array
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    last_obs: Array
    finals: Finals
    extras: dict[str, Array]
    valid: Array = None
    ended: Array = None

    @property
    def final_obs(self) -> Array:
        """``[C, ...]``, `finals.obs`."""
        return self.finals.obs

    @property
    def final_index(self) -> Array:
        """``[C]``, `finals.index`."""
        return self.finals.index


class Batch(NamedTuple):
    """B replayed transitions, each of n steps (fewer at the end of an episode or of the replay).

    Attributes:
        obs: ``[B, ...]`` raw observations.
        actions: ``[B]`` int32 or ``[B, A]`` float32.
        rewards: ``[B]`` float32, the discounted sum of the steps' rewards.
        next_obs: ``[B, ...]`` raw observations after them.
        discounts: ``[B]`` float32, factor of the value of `next_obs`: gamma^n, 0 at a terminal.
        weights: ``[B]`` float32 importance weights, 1 for uniform samples.
    """

    obs: Array
    actions: Array
    rewards: Array
    next_obs: Array
    discounts: Array
    weights: Array


class Episode(NamedTuple):
    """A finished episode."""

    env: int  # its environment
    episode_return: float  # undiscounted and raw
    length: int  # in steps
    # Mean of the largest action value over its acting steps; NaN if the network never ran or has
    # no action values.
    q_max: float = math.nan
    info: dict[str, float] | None = None  # the scalars of its final `info`


class Episodes(NamedTuple):
    """Finished episodes as arrays ``[K]``, in the order of their ends; fields as `Episode`'s but
    for `info`."""

    env: Array
    episode_return: Array
    length: Array
    q_max: Array


@dataclass
class Metrics:
    """Results of one iteration."""

    steps: int  # environment steps, summed over environments
    updates: int  # gradient steps
    episodes: Episodes  # that finished
    values: dict[str, float] = field(default_factory=dict[str, float])  # the algorithm's scalars
    # The scalars of each episode's final `info`, in `episodes`' order; empty where none has any.
    infos: Sequence[dict[str, float] | None] = ()


@dataclass
class Snapshot:
    """All of a schedule's state at an iteration's boundary."""

    arrays: dict[str, Array]  # NumPy arrays by name
    data: dict[str, Any]  # JSON-compatible counters and settings
    rows: RowSource | None = None  # stored experience; a checkpoint writes only new rows of it


class RowSource(Protocol):
    """Rows of experience, numbered since the run's start; the oldest are dropped."""

    @property
    def stored(self) -> tuple[int, int]:
        """The first and one past the last row that are needed to continue."""
        ...

    def read(self, first: int, end: int) -> dict[str, Array]:
        """The rows ``first .. end - 1``: arrays by name, with a leading axis of rows."""
        ...
