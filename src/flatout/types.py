"""Plain types that all modules share, with their arrays' shapes.

Dimensions: ``T`` steps of a trajectory, ``N`` environments, ``B`` a batch, ``C`` final
observations. All arrays may be NumPy or JAX arrays; named tuples are pytrees.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol

Array = Any  # numpy.ndarray | jax.Array, without importing JAX
Obs = Any  # a tree of arrays, see flatout.tree: one array, or a flat dict of arrays by path
Device = Any  # jax.Device


@dataclass(frozen=True)
class ObservationSpec:
    """The space of one array of an environment's observations.

    An array is an image ``[H, W, C]``, categories, or numbers of any other shape.
    """

    shape: tuple[int, ...]
    dtype: str  # NumPy's name, for example "float32" or "uint8"
    # The largest value (255 for pixels), by which networks divide the array; None for other numbers
    # and for categories, which are not scaled.
    high: int | None = None
    # S, frames in an image as groups of channels, the newest last; replay stores each frame once.
    stack: int = 1
    stack_pad: str = "first"  # an episode's first stacks repeat its first frame, or hold "zeros"
    # The number of values of each component, in C order, and the least value of each, if components
    # are categories (a Discrete or MultiDiscrete space); else empty.
    categories: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    channels_first: bool = False  # whether an image is [C, H, W]
    text: bool = False  # whether the environment gives a text, see `flatout.casts.word_counts`
    # Whether it is the mask of allowed actions ``[K]``, 0 or 1 for each value of each of the
    # action's choices (`flatout.actions.choices`). Networks do not see it.
    mask: bool = False

    @property
    def is_image(self) -> bool:
        """Whether the array has rows, columns and channels."""
        return len(self.shape) == 3 and not self.categories

    @property
    def image_shape(self) -> tuple[int, ...]:
        """The shape of an image as ``[H, W, C]``."""
        return (*self.shape[1:], self.shape[0]) if self.channels_first else self.shape

    @property
    def frame(self) -> ObservationSpec:
        """The space of one of its frames."""
        if self.stack == 1:
            return self
        return replace(self, shape=(*self.shape[:-1], self.shape[-1] // self.stack), stack=1)


ObsSpec = ObservationSpec | dict[str, ObservationSpec]
"""The spec of an observation: of one array, or of several by path (see `flatout.tree`)."""


def mask_path(spec: ObsSpec) -> str:
    """Return the path of the action mask among observations, or an empty string."""
    leaves = spec.items() if isinstance(spec, dict) else ()
    return next((path for path, leaf in leaves if leaf.mask), "")


def has_images(spec: ObsSpec) -> bool:
    """Return whether an observation is or contains an image."""
    return any(leaf.is_image for leaf in (spec.values() if isinstance(spec, dict) else [spec]))


class ActionSpec(ABC):
    """The space of one environment's actions, in two forms.

    Algorithms choose actions as arrays of one shape and type; the environment takes them in its
    own. NumPy is imported by the methods, so that this module needs it only where actions are made.

    Attributes:
        kind: the name of the space in messages.
        choice_dtype: the type of an action as algorithms choose it.
    """

    kind: ClassVar[str]
    choice_dtype: ClassVar[str]

    @property
    @abstractmethod
    def choice_shape(self) -> tuple[int, ...]:
        """The shape of one action as algorithms choose it."""

    @abstractmethod
    def to_env(self, choices: Array) -> Any:
        """Convert chosen actions ``[B, ...]`` to the environment's, one array (or a dict or tuple
        of arrays) with an axis B, which may be 0."""

    @abstractmethod
    def from_env(self, action: Any) -> Array:
        """Convert one action of the environment to the form that algorithms choose."""

    @abstractmethod
    def from_uniform(self, xp: Any, draws: Array) -> Array:
        """Map uniform draws from 0 to 1 to uniform actions ``[B, ...]``. For missing bounds see
        `ContinuousSpec.finite_bounds`.

        Args:
            xp: `numpy` or `jax.numpy`.
            draws: float32 ``[B, K]``; K is the number of components, at least 1.
        """

    @abstractmethod
    def idle(self) -> Array:
        """Return a valid action: the first of a discrete space, or the one nearest to 0."""

    @abstractmethod
    def to_gym(self) -> Any:
        """Return the Gymnasium space of the environment's actions; a box's are float32."""

    @abstractmethod
    def exported(self) -> dict[str, Any]:
        """Return the fields by which an exported agent makes the environment's actions."""

    def separate(self, choices: Array) -> Sequence[Any]:
        """Convert chosen actions ``[B, ...]`` to a list of the environment's actions."""
        return list(self.to_env(choices))

    def first(self, choices: Array) -> Any:
        """Convert the first of some chosen actions ``[B, ...]`` to the environment's action."""
        return self.to_env(choices)[0]

    def random(self, rng: Any, count: int) -> Array:
        """Draw `count` actions uniformly with a NumPy generator."""
        import numpy as np

        size = (count, math.prod(self.choice_shape))
        return self.from_uniform(np, rng.random(size, np.float32))


@dataclass(frozen=True)
class DiscreteSpec(ActionSpec):
    """A space of actions ``start, ..., start + n - 1``; algorithms use ``0, ..., n - 1``."""

    n: int
    start: int = 0

    kind: ClassVar[str] = "Discrete"
    choice_dtype: ClassVar[str] = "int32"

    @property
    def choice_shape(self) -> tuple[int, ...]:
        return ()

    def to_env(self, choices: Array) -> Array:
        return choices.astype("int64") + self.start

    def separate(self, choices: Array) -> Sequence[Any]:
        return (self.to_env(choices) if self.start else choices).tolist()

    def from_env(self, action: Any) -> Array:
        import numpy as np

        return np.asarray(int(action) - self.start, np.int32)

    def from_uniform(self, xp: Any, draws: Array) -> Array:
        chosen = xp.floor(draws[:, 0] * self.n).astype("int32")
        return xp.minimum(chosen, self.n - 1)  # a product may be rounded up to n

    def to_gym(self) -> Any:
        import gymnasium as gym

        return gym.spaces.Discrete(self.n, start=self.start)

    def exported(self) -> dict[str, Any]:
        return {"kind": "choice", "count": self.n, "start": self.start}

    def idle(self) -> Array:
        import numpy as np

        return np.zeros((), np.int32)


@dataclass(frozen=True)
class ContinuousSpec(ActionSpec):
    """A box of actions, flattened to ``[A]``; the bounds are tuples of length ``A``."""

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: str = "float32"

    kind: ClassVar[str] = "Box"
    choice_dtype: ClassVar[str] = "float32"

    @property
    def size(self) -> int:
        """A, the number of components of an action."""
        return len(self.low)

    @property
    def choice_shape(self) -> tuple[int, ...]:
        return (self.size,)

    def to_env(self, choices: Array) -> Array:
        from flatout.casts import cast_actions

        return cast_actions(choices, self.dtype).reshape(len(choices), *self.shape)

    def from_env(self, action: Any) -> Array:
        import numpy as np

        return np.reshape(np.asarray(action, np.float32), (self.size,))

    def from_uniform(self, xp: Any, draws: Array) -> Array:
        low, high = self.finite_bounds()
        return xp.clip(low + draws * (high - low), low, high)  # the sum may be rounded up

    def to_gym(self) -> Any:
        import gymnasium as gym
        import numpy as np

        low, high = (np.asarray(b, np.float32).reshape(self.shape) for b in (self.low, self.high))
        return gym.spaces.Box(low, high, dtype=np.float32)

    def exported(self) -> dict[str, Any]:
        return {"kind": "box", "shape": list(self.shape), "dtype": self.dtype}

    def idle(self) -> Array:
        import numpy as np

        from flatout.casts import inwards

        return np.clip(np.zeros(self.size, np.float32), *inwards(self.low, self.high))

    def finite_bounds(self) -> tuple[Array, Array]:
        """Return finite bounds within the box, float32 ``[A]``; `low` is never above `high`.

        A missing one (a million or more from 0) is -1 (low) or 1 (high). If the other bound does
        not leave room for that, it is at a distance of that bound's size from it, at least 2.
        """
        import numpy as np

        from flatout.casts import inwards

        inner_low, inner_high = low, high = inwards(self.low, self.high)
        no_low, no_high = low <= -1e6, high >= 1e6
        low, high = np.where(no_low, -1.0, low), np.where(no_high, 1.0, high)
        further_low = np.maximum(high - np.maximum(2.0, np.abs(high)), inner_low)
        further_high = np.minimum(low + np.maximum(2.0, np.abs(low)), inner_high)
        crossed = low >= high
        low, high = (
            np.where(crossed & no_low, further_low, low),
            np.where(crossed & no_high, further_high, high),
        )
        # Two equal bounds that float32 cannot hold were rounded past each other.
        return np.minimum(low, high).astype(np.float32), high.astype(np.float32)


@dataclass(frozen=True)
class UserCode:
    """Objects that a Python program passes instead of names. None: the settings have a name."""

    env: Any = None  # an environment object, or a function that makes one
    network: Any = None  # a custom torso
    algorithm: Any = None  # a function that makes the algorithm (see `flatout.Algorithm`)
    # The name of another environment for evaluations, and the object or function behind it.
    eval_env: tuple[str | None, Any] | None = None


NAMED = UserCode()
"""No object: all parts are found by their names."""


class Finals(NamedTuple):
    """The final observations of truncated episodes, in arrays with a capacity of C.

    Attributes:
        obs: ``[C, ...]`` raw observations, a tree; of stacks only the newest frame if
            `Trajectory.age` is not None.
        index: ``[C]`` int32, the position ``t * N + n`` of the truncated step, ``T * N`` for an
            unused entry.
    """

    obs: Array
    index: Array


class Trajectory(NamedTuple):
    """T steps of N environments, with the observations for bootstrapping.

    Observations are trees (`flatout.tree`): one array, or a dict of arrays. Samplers that step
    environments on the host store each frame of a stack of S frames once (`flatout.frames`): `obs`
    then has ``T + S - 1`` rows of single frames, of which the first S - 1 are the older frames of
    the first observation. Algorithms always get whole observations.

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
        carry: the carry of a recurrent policy before the first step, a pytree of ``[N, ...]``; ()
            for others. It is the initial carry where an episode begins with the first step.
        age: uint8 ``[T + 1, N]``, steps since the first observation of the episode (at most 255),
            of each observation and of `last_obs`, if frames are stored once; else None.
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
    carry: Any = ()
    age: Array = None

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
        obs: ``[B, ...]`` raw observations, a tree (`flatout.tree`).
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


Restart = tuple[int, Obs, Obs]
"""A restart of an environment within an episode: the environment's number, its last observation,
and the first observation of its new episode."""


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
