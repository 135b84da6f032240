"""The specs of actions with several components: several choices, switches, and Dict or Tuple spaces
of other actions. `flatout.types` has those of a single choice and of a box."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from flatout.types import ActionSpec, Array, ContinuousSpec, DiscreteSpec


@dataclass(frozen=True)
class MultiDiscreteSpec(ActionSpec):
    """A space of several choices, flattened to ``[K]``; algorithms count each of them from 0.

    Attributes:
        counts: the number of values of each component, in C order.
        starts: the least value of each component.
        shape: the shape of the environment's action.
        dtype: its type.
    """

    counts: tuple[int, ...]
    starts: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str = "int64"

    kind: ClassVar[str] = "MultiDiscrete"
    choice_dtype: ClassVar[str] = "int32"

    @property
    def choice_shape(self) -> tuple[int, ...]:
        return (len(self.counts),)

    def to_env(self, choices: Array) -> Array:
        import numpy as np

        actions = choices.astype("int64") + np.asarray(self.starts)
        return actions.astype(self.dtype).reshape(len(choices), *self.shape)

    def from_env(self, action: Any) -> Array:
        import numpy as np

        return (np.reshape(action, -1) - np.asarray(self.starts)).astype(np.int32)

    def from_uniform(self, xp: Any, draws: Array) -> Array:
        import numpy as np

        counts = np.asarray(self.counts, np.int32)
        # A product may be rounded up to the count.
        return xp.minimum(xp.floor(draws * counts).astype("int32"), counts - 1)

    def idle(self) -> Array:
        import numpy as np

        return np.zeros(len(self.counts), np.int32)

    def to_gym(self) -> Any:
        import gymnasium as gym
        import numpy as np

        counts, starts = (np.reshape(a, self.shape) for a in (self.counts, self.starts))
        return gym.spaces.MultiDiscrete(counts, start=starts)

    def exported(self) -> dict[str, Any]:
        return {
            "kind": "choices", "counts": list(self.counts), "starts": list(self.starts),
            "shape": list(self.shape), "dtype": self.dtype,
        }  # fmt: skip


@dataclass(frozen=True)
class MultiBinarySpec(MultiDiscreteSpec):
    """A space of several switches, each 0 or 1; see `multi_binary`."""

    kind: ClassVar[str] = "MultiBinary"

    def to_gym(self) -> Any:
        import gymnasium as gym

        return gym.spaces.MultiBinary(self.shape)


def multi_binary(shape: tuple[int, ...]) -> MultiBinarySpec:
    """Return the spec of switches in an array of this shape."""
    size = math.prod(shape)
    return MultiBinarySpec((2,) * size, (0,) * size, shape, "int8")


@dataclass(frozen=True)
class CompositeSpec(ActionSpec):
    """A Dict or Tuple space of actions. Algorithms choose one vector ``[K]``, in which the parts
    follow each other; it is float32 if a part is a box, which is exact for choices below 2^24.

    Attributes:
        keys: the keys of a Dict space in the order of `parts`; None for a Tuple space.
        parts: the specs of the entries, which may be composite themselves.
    """

    keys: tuple[str, ...] | None
    parts: tuple[ActionSpec, ...]

    choice_dtype: str = "float32"  # type: ignore[misc]  # follows from the parts, see `composite`

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "Tuple" if self.keys is None else "Dict"

    @property
    def choice_shape(self) -> tuple[int, ...]:
        return (sum(self._sizes),)

    @property
    def _sizes(self) -> list[int]:
        return [math.prod(part.choice_shape) for part in self.parts]

    def split(self, vectors: Array) -> list[Array]:
        """Return the choices of each part, ``[B, ...]`` in its shape and type, for ``[B, K]``."""
        found: list[Array] = []
        start = 0
        for part, size in zip(self.parts, self._sizes, strict=True):
            own = vectors[:, start : start + size].astype(part.choice_dtype)
            found.append(own.reshape(len(vectors), *part.choice_shape))
            start += size
        return found

    def join(self, xp: Any, choices: Sequence[Array]) -> Array:
        """Return vectors ``[B, K]`` of the parts' choices, the inverse of `split`.

        Args:
            xp: `numpy` or `jax.numpy`.
            choices: one array ``[B, ...]`` for each part.
        """
        flat = [one.reshape(len(one), -1).astype(self.choice_dtype) for one in choices]
        return xp.concatenate(flat, -1)

    def _named(self, values: Sequence[Any]) -> Any:
        return tuple(values) if self.keys is None else dict(zip(self.keys, values, strict=True))

    def to_env(self, choices: Array) -> Any:
        """Convert chosen actions to a dict or tuple of the environment's arrays ``[B, ...]``."""
        parts = zip(self.parts, self.split(choices), strict=True)
        return self._named([part.to_env(own) for part, own in parts])

    def separate(self, choices: Array) -> Sequence[Any]:
        parts = zip(self.parts, self.split(choices), strict=True)
        columns = [part.separate(own) for part, own in parts]
        return [self._named(row) for row in zip(*columns, strict=True)]

    def first(self, choices: Array) -> Any:
        own = zip(self.parts, self.split(choices), strict=True)
        return self._named([part.first(one) for part, one in own])

    def from_env(self, action: Any) -> Array:
        import numpy as np

        entries = action if self.keys is None else [action[key] for key in self.keys]
        own = [part.from_env(one) for part, one in zip(self.parts, entries, strict=True)]
        return self.join(np, [one[None] for one in own])[0]

    def from_uniform(self, xp: Any, draws: Array) -> Array:
        found: list[Array] = []
        start = 0
        for part, size in zip(self.parts, self._sizes, strict=True):
            found.append(part.from_uniform(xp, draws[:, start : start + size]))
            start += size
        return self.join(xp, found)

    def idle(self) -> Array:
        import numpy as np

        return self.join(np, [part.idle()[None] for part in self.parts])[0]

    def to_gym(self) -> Any:
        import gymnasium as gym

        inner = self._named([part.to_gym() for part in self.parts])
        return gym.spaces.Tuple(inner) if self.keys is None else gym.spaces.Dict(inner)

    def exported(self) -> dict[str, Any]:
        parts = [part.exported() for part in self.parts]
        keys = None if self.keys is None else list(self.keys)
        return {"kind": "parts", "keys": keys, "parts": parts}


def composite(keys: tuple[str, ...] | None, parts: Sequence[ActionSpec]) -> CompositeSpec:
    """Return the spec of a Dict space with these keys, or of a Tuple space if `keys` is None."""
    floats = any(part.choice_dtype == "float32" for part in parts)
    return CompositeSpec(keys, tuple(parts), "float32" if floats else "int32")


def choices(spec: ActionSpec) -> tuple[int, ...]:
    """Return the number of values of each choice among an action's components, in their order. The
    entries of a mask follow this order; boxes have none."""
    if isinstance(spec, DiscreteSpec):
        return (spec.n,)
    if isinstance(spec, MultiDiscreteSpec):
        return spec.counts
    parts = spec.parts if isinstance(spec, CompositeSpec) else ()
    return tuple(count for part in parts for count in choices(part))


def boxes(spec: ActionSpec) -> tuple[ContinuousSpec, ...]:
    """Return the boxes in an action space, in their order."""
    if isinstance(spec, ContinuousSpec):
        return (spec,)
    parts = spec.parts if isinstance(spec, CompositeSpec) else ()
    return tuple(box for part in parts for box in boxes(part))


def mask_columns(spec: ActionSpec) -> list[int]:
    """Return for each parameter of an action's distribution its entry in the mask, and -1 for the
    parameters of boxes, which have none."""
    if isinstance(spec, ContinuousSpec):
        return [-1] * spec.size
    if not isinstance(spec, CompositeSpec):
        return list(range(sum(choices(spec))))
    found: list[int] = []
    entries = 0
    for part in spec.parts:
        found += [column if column < 0 else entries + column for column in mask_columns(part)]
        entries += sum(choices(part))
    return found


def forbids_all(xp: Any, spec: ActionSpec, mask: Array) -> Array:
    """Return whether masks ``[..., K]`` allow no value of one of the action's choices.

    Args:
        xp: `numpy` or `jax.numpy`.
    """
    counts = choices(spec)
    if len(counts) == 1:  # quickly: a host calls this in every step
        return ~mask.any(-1)
    parts = xp.split(mask, list(itertools.accumulate(counts))[:-1], -1)
    return functools.reduce(operator.or_, [~part.any(-1) for part in parts])


def allowed(xp: Any, spec: ActionSpec, mask: Array, action: Array) -> Array:
    """Return actions ``[B, ...]`` as algorithms choose them, with each choice that its mask forbids
    replaced by the next allowed one.

    Args:
        xp: `numpy` or `jax.numpy`.
        mask: ``[B, K]``, see `choices`.
    """
    flat = action.reshape(len(action), -1)
    columns = [flat[:, column] for column in range(flat.shape[1])]
    start = 0
    for column, count in zip(_choice_columns(spec), choices(spec), strict=True):
        own = mask[:, start : start + count] > 0
        start += count
        after = (columns[column].astype("int32")[:, None] + xp.arange(count)) % count
        steps = xp.take_along_axis(own, after, 1).argmax(1)
        chosen = xp.take_along_axis(after, steps[:, None], 1)[:, 0]
        columns[column] = chosen.astype(action.dtype)
    return xp.stack(columns, -1).reshape(action.shape)


def _choice_columns(spec: ActionSpec, first: int = 0) -> list[int]:
    """Return the columns of the choices in an action's flat vector."""
    if not isinstance(spec, CompositeSpec):
        return [first + at for at in range(len(choices(spec)))]
    found: list[int] = []
    for part in spec.parts:
        found += _choice_columns(part, first)
        first += math.prod(part.choice_shape)
    return found
