"""The specs of Gymnasium's spaces, and the conversion of nested observations to flat trees.

`envs.make` and `envs.host` call it. A further kind of observation is added here (its spec, and how
it becomes an array) and in `networks.encoder` (how it becomes features).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from flatout.actions import MultiDiscreteSpec, choices, composite, multi_binary
from flatout.casts import word_counts
from flatout.envs.masks import MaskSpace
from flatout.errors import UsageError
from flatout.tree import is_key, joined
from flatout.types import ActionSpec, ContinuousSpec, DiscreteSpec, ObservationSpec, ObsSpec

WORDS = 128
"""The length of the array of a text; see `flatout.casts.word_counts`."""

Structure = dict[str, "Structure | None"]
"""The nesting of an observation: by key, the structure of a nested space, or None for an array."""

MOST_CATEGORIES = 100_000
"""The most values of all components of an array of categories."""


def observation_spec(space: gym.Space[Any], name: str, stack: int = 1) -> ObsSpec:
    """Return the spec of an observation space; nested Dict and Tuple spaces are flattened.

    Args:
        space: the space.
        name: the environment's name, for messages.
        stack: frames in an image that Flatout stacked (`MergedStack`).

    Raises:
        UsageError: a space is not supported, a Dict space is empty, or a key is not a text without
            slashes; the message names the path.
    """
    if not isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        return _array_spec(space, f"{name} observes {kind_of(space)}", stack)
    found = {
        path: _array_spec(leaf, f"{name} observes {kind_of(leaf)} at {path!r}", stack)
        for path, leaf in flat_spaces(space, name)
    }
    return dict(sorted(found.items()))


def flat_spaces(
    space: gym.Space[Any], name: str, prefix: str = ""
) -> Iterator[tuple[str, gym.Space[Any]]]:
    """Yield the spaces of arrays within a space, with their paths."""
    if not isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        yield prefix, space
        return
    for key, inner in entries_of(space, f"{name} observes", prefix).items():
        yield from flat_spaces(inner, name, joined(prefix, key))


def entries_of(
    space: gym.spaces.Dict | gym.spaces.Tuple, what: str, path: str
) -> dict[str, gym.Space[Any]]:
    """Return the entries of a Dict or Tuple space by key; those of a Tuple space are numbered.

    Args:
        space: the space.
        what: the beginning of a message about it.
        path: where the space is, for messages.

    Raises:
        UsageError: there are no entries, or a key is not such a text as `tree.is_key` asks for.
    """
    at = f" at {path!r}" if path else ""
    found: dict[Any, gym.Space[Any]] = (
        dict(space.spaces) if isinstance(space, gym.spaces.Dict)
        else {str(index): one for index, one in enumerate(space.spaces)}
    )  # fmt: skip
    if not found:
        raise UsageError(f"{what} {kind_of(space)} without entries{at}; add one.")
    for key in found:
        if not is_key(key):
            raise UsageError(
                f"{what} a Dict space with the key {key!r}{at}; keys have to be texts without "
                "slashes, in valid Unicode: rename it in a wrapper."
            )
    return found


def _array_spec(space: gym.Space[Any], seen: str, stack: int) -> ObservationSpec:
    """Return the spec of one array; `seen` is the beginning of a message about it."""
    if isinstance(space, gym.spaces.Discrete):
        return _category_spec((), (int(space.n),), (int(space.start),), seen)
    if isinstance(space, gym.spaces.MultiDiscrete) and 0 not in space.shape:
        counts, starts = (tuple(map(int, part.ravel())) for part in (space.nvec, space.start))
        return _category_spec(space.nvec.shape, counts, starts, seen)
    if isinstance(space, gym.spaces.MultiBinary) and 0 not in space.shape:
        masks = isinstance(space, MaskSpace)
        return ObservationSpec(space.shape, "uint8", None if masks else 1, mask=masks)
    if is_text(space):
        return ObservationSpec((WORDS,), "uint8", text=True)
    if not isinstance(space, gym.spaces.Box):
        if getattr(space, "shape", None) is not None and 0 in (space.shape or ()):
            raise UsageError(f"{seen}, which is empty.")
        raise UsageError(
            f"{seen}; Flatout takes Box, Discrete, MultiDiscrete, MultiBinary and Text "
            "observations, and Dict and Tuple spaces of them: convert it to one of these in a "
            "wrapper."
        )
    if 0 in space.shape:
        raise UsageError(f"{seen}, which is empty.")
    kind = space.dtype.kind if space.dtype is not None else "f"
    image = len(space.shape) == 3
    stack = stack if image else 1
    transposed = stack == 1 and channels_first(space)
    if kind not in "ui":
        pixels = (
            image and kind == "f" and bool((space.low == 0).all() and (space.high == 255).all())
        )
        high = 255 if pixels else None
        return ObservationSpec(space.shape, "float32", high, stack, channels_first=transposed)
    high, least = int(space.high.max()), int(space.low.min())
    if space.dtype == np.uint8:
        return ObservationSpec(space.shape, "uint8", max(high, 1), stack, channels_first=transposed)
    dtype = "int32" if least >= -(2**31) and high < 2**31 else "float32"
    return ObservationSpec(space.shape, dtype, None, stack, channels_first=transposed)


def is_text(space: gym.Space[Any]) -> bool:
    """Return whether a space holds texts: Gymnasium's, or another library's by its sample."""
    if isinstance(space, gym.spaces.Text):
        return True
    if type(space).__module__.startswith("gymnasium."):
        return False
    try:
        return isinstance(space.sample(), str)
    except (Exception, SystemExit):  # another library's space may raise anything
        return False


def _category_spec(
    shape: tuple[int, ...], counts: tuple[int, ...], starts: tuple[int, ...], seen: str
) -> ObservationSpec:
    """Return the spec of an array of categories, which become one-hot vectors."""
    if sum(counts) > MOST_CATEGORIES:
        raise UsageError(
            f"{seen} of {sum(counts):,} values, which become one-hot vectors; Flatout takes at "
            f"most {MOST_CATEGORIES:,}: convert it to a Box in a wrapper."
        )
    if max(map(abs, starts)) > 2**30:
        raise UsageError(
            f"{seen} that begins at {max(starts, key=abs)}, which int32 cannot hold; begin at 0."
        )
    return ObservationSpec(shape, "int32", categories=counts, starts=starts)


MOST_CHOICES = 2**24
"""The most values of all choices of an action: a policy has an output for each of them, and single
precision cannot tell more apart."""


def action_spec(space: gym.Space[Any], name: str) -> ActionSpec:
    """Return the spec of an action space.

    Args:
        space: the space.
        name: the environment's name, for messages.

    Raises:
        UsageError: it is not supported, has no entries or no components, or too many values.
    """
    spec = _action_spec(space, name)
    if (count := sum(choices(spec))) > MOST_CHOICES:
        raise UsageError(
            f"{name} acts with a {spec.kind} space of {count:,} values; a policy has an output for "
            f"each of them, and Flatout takes at most {MOST_CHOICES:,}: use a Box, or a "
            "MultiDiscrete space with several smaller components."
        )
    return spec


def _action_spec(space: gym.Space[Any], name: str, path: str = "") -> ActionSpec:
    """Return the spec of an action space.

    Args:
        space: the space.
        name: the environment's name, for messages.
        path: of the space within a Dict or Tuple space, for messages.

    Raises:
        UsageError: it is not supported, or it has no entries or no components.
    """
    of = f" at {path!r}" if path else ""
    if isinstance(space, gym.spaces.Discrete):
        return DiscreteSpec(int(space.n), int(space.start))
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        entries = entries_of(space, f"{name} acts with", path)
        parts = [_action_spec(one, name, joined(path, key)) for key, one in entries.items()]
        keys = tuple(entries) if isinstance(space, gym.spaces.Dict) else None
        return composite(keys, parts)
    if 0 in (space.shape or ()):
        kind = type(space).__name__
        raise UsageError(f"{name} acts with a {kind} of shape {space.shape}{of}, which is empty.")
    if isinstance(space, gym.spaces.MultiDiscrete):
        counts, starts = (tuple(map(int, part.ravel())) for part in (space.nvec, space.start))
        return MultiDiscreteSpec(counts, starts, space.nvec.shape, str(space.dtype))
    if isinstance(space, gym.spaces.MultiBinary):
        return multi_binary(space.shape)
    if isinstance(space, gym.spaces.Box) and space.dtype is not None:
        low = tuple(float(x) for x in space.low.ravel())
        high = tuple(float(x) for x in space.high.ravel())
        return ContinuousSpec(space.shape, low, high, str(space.dtype))
    raise UsageError(
        f"{name} acts with {kind_of(space)}{of}; Flatout takes Box, Discrete, MultiDiscrete and "
        "MultiBinary actions, and Dict and Tuple spaces of them."
    )


def structure(spec: ObsSpec) -> Structure | None:
    """Return the nesting of an environment's observations; None for a single array."""
    if not isinstance(spec, dict):
        return None
    root: Structure = {}
    for path in spec:
        *parents, last = path.split("/")
        node = root
        for key in parents:
            inner = node.setdefault(key, {})
            assert inner is not None
            node = inner
        node[last] = None
    return root


def flattened(obs: Any, nesting: Structure | None, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a nested observation with their paths.

    Args:
        obs: mappings, tuples and lists of arrays, or one array.
        nesting: the result of `structure`.

    Raises:
        ValueError: an entry is missing or unexpected; the message is a phrase that names its path.
    """
    if nesting is None:
        yield prefix, obs
        return
    if isinstance(obs, Mapping):
        given: Mapping[Any, Any] = obs
    elif isinstance(obs, tuple | list):
        given = {str(index): part for index, part in enumerate(obs)}
    else:
        at = f" at {prefix!r}" if prefix else ""
        raise ValueError(
            f"type {type(obs).__name__}{at} instead of a dict or tuple with {', '.join(nesting)}"
        )
    if given.keys() != nesting.keys():
        missing = [key for key in nesting if key not in given]
        extra = [key for key in given if key not in nesting]
        key, what = (missing[0], "no entry") if missing else (extra[0], "an unexpected entry")
        path = joined(prefix, str(key))
        raise ValueError(f"{what} {path!r}")
    for key, inner in nesting.items():
        yield from flattened(given[key], inner, joined(prefix, key))


def as_array(value: Any, spec: ObservationSpec) -> np.ndarray:
    """Return an environment's value for one array of an observation; an array of type object if it
    cannot be an array."""
    try:
        return word_counts(value, *spec.shape) if spec.text else np.asarray(value)
    except (Exception, SystemExit):  # rows may differ in length, a user's object may raise anything
        return np.asarray(None)


def array_of(obs: Any, spec: ObservationSpec) -> np.ndarray:
    """Return one array of an observation as a NumPy array; a text as counts of its words.

    Raises:
        ValueError: it holds no numbers, or has another shape than `spec`; the message is a phrase.
    """
    array = as_array(obs, spec)
    if array.shape == spec.shape and array.dtype.kind in "fiub":
        return array
    if not isinstance(obs, np.ndarray) and array.dtype.kind not in "fiub":
        raise ValueError(f"type {type(obs).__name__}")
    raise ValueError(f"shape {array.shape} and type {array.dtype}")


def in_range(array: np.ndarray, spec: ObservationSpec) -> np.ndarray:
    """Return an array of an observation, or a batch ``[B, ...]`` of it, not yet cast.

    Raises:
        ValueError: its space does not have one of its categories; the message is a phrase.
    """
    if spec.categories:
        given = array.reshape(-1, len(spec.starts)) - np.asarray(spec.starts)
        outside = (given < 0) | (given >= spec.categories)
        if array.dtype.kind == "f":  # NaN is outside, too
            outside |= given % 1 != 0
        if outside.any():
            which = int(outside.argmax())
            component = which % len(spec.starts)
            low = spec.starts[component]
            high = low + spec.categories[component] - 1
            raise ValueError(f"{array.flat[which]}, which is none of {low} to {high}")
    return array


CHANNELS, LEAST_SIDE = (1, 3, 4), 16


def channels_first(space: gym.spaces.Box) -> bool:
    """Return whether a box holds images with the channels first: a first axis of 1, 3 or 4, and at
    least 16 rows and columns."""
    first, *others = space.shape or (0,)
    return len(others) == 2 and first in CHANNELS and min(others) >= LEAST_SIDE


def kind_of(space: gym.Space[Any]) -> str:
    """Describe a space for a message: its kind and, for a box, its shape."""
    shape = f" of shape {space.shape}" if isinstance(space, gym.spaces.Box) else ""
    return f"a {type(space).__name__} space{shape}"
