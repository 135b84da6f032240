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
    """The space of one environment's observations: vectors ``[D]`` or images ``[H, W, C]``."""

    shape: tuple[int, ...]
    dtype: str  # NumPy's name, for example "float32" or "uint8"
    # The largest value of an integer observation (255 for pixels), by which networks divide it;
    # None for floating point observations, which are not scaled.
    high: int | None = None
    # S, frames in an image as groups of channels, the newest last; replay stores each frame once.
    stack: int = 1
    stack_pad: str = "first"  # an episode's first stacks repeat its first frame, or hold "zeros"

    @property
    def is_image(self) -> bool:
        """Whether observations have rows, columns and channels."""
        return len(self.shape) == 3


@dataclass(frozen=True)
class DiscreteSpec:
    """A space of actions ``start, ..., start + n - 1``; algorithms use ``0, ..., n - 1``."""

    n: int
    start: int = 0


@dataclass(frozen=True)
class ContinuousSpec:
    """A box of actions, flattened to ``[A]``; the bounds are tuples of length ``A``."""

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """A, the number of components of an action."""
        return len(self.low)


ActionSpec = DiscreteSpec | ContinuousSpec


@dataclass(frozen=True)
class UserCode:
    """Objects that a Python program passes instead of names. None: the settings have a name."""

    env: Any = None  # an environment object, or a function that makes one
    network: Any = None  # a custom torso
    algorithm: Any = None  # a function that makes the algorithm (see `flatout.Algorithm`)


NAMED = UserCode()
"""No object: all parts are found by their names."""


class Finals(NamedTuple):
    """The final observations of truncated episodes, in arrays with a capacity of C.

    Attributes:
        obs: ``[C, ...]`` raw observations.
        index: ``[C]`` int32, the position ``t * N + n`` of the truncated step, ``T * N`` for an
            unused entry.
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
        last_obs: ``[N, ...]`` observations after the last step: the first ones of the next
            episodes where that step ended an episode.
        finals: the final observations of truncated episodes.
        extras: the other outputs of `act` by name, each ``[T, N, ...]``.
        valid: ``[T, N]`` bool, the steps that count; None if all do.
        ended: ``[T, N]`` bool, whether the step ended the episode (a lost life does not);
            None for algorithms without replay.
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
        """``[C, ...]``, the same as `finals.obs`."""
        return self.finals.obs

    @property
    def final_index(self) -> Array:
        """``[C]``, the same as `finals.index`."""
        return self.finals.index


class Batch(NamedTuple):
    """B replayed transitions of n steps (fewer at the end of an episode or of the replay).

    Attributes:
        obs: ``[B, ...]`` raw observations.
        actions: ``[B]`` int32 or ``[B, A]`` float32.
        rewards: ``[B]`` float32, the discounted sum of the steps' rewards.
        next_obs: ``[B, ...]`` raw observations after these steps.
        discounts: ``[B]`` float32, the factor of the value of `next_obs`: gamma^n, or 0 after a
            terminal step.
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

    env: int  # the number of its environment
    episode_return: float  # the sum of raw rewards, undiscounted
    length: int  # in steps
    # The mean of the largest action value over the steps in which the network acted; NaN if it
    # never did or has no action values.
    q_max: float = math.nan
    info: dict[str, float] | None = None  # the scalars of its final `info`


class Episodes(NamedTuple):
    """Finished episodes as arrays ``[K]``, in the order of their ends. The fields are those of
    `Episode`, except `info`."""

    env: Array
    episode_return: Array
    length: Array
    q_max: Array


@dataclass
class Metrics:
    """The results of one iteration."""

    steps: int  # environment steps, summed over environments
    updates: int  # gradient steps
    episodes: Episodes  # the episodes that finished
    values: dict[str, float] = field(default_factory=dict[str, float])  # the algorithm's scalars
    # The scalars of each episode's final `info`, in `episodes`' order; empty where none has any.
    infos: Sequence[dict[str, float] | None] = ()


@dataclass
class Snapshot:
    """The complete state of a schedule at an iteration's boundary."""

    arrays: dict[str, Array]  # NumPy arrays by name
    data: dict[str, Any]  # JSON-compatible counters and settings
    rows: RowSource | None = None  # stored experience; a checkpoint writes only new rows of it


class RowSource(Protocol):
    """Rows of experience, numbered from the run's start. The oldest rows are dropped."""

    @property
    def stored(self) -> tuple[int, int]:
        """The first of the rows that are needed to continue, and one past the last."""
        ...

    def read(self, first: int, end: int) -> dict[str, Array]:
        """Return the rows ``first .. end - 1``: arrays by name, with a leading axis of rows."""
        ...
