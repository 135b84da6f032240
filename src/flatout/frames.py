"""Frame stacks: images of S frames as groups of channels, the newest last.

From an environment to the program that acts or learns, each frame is stored and copied once:
arrays hold one frame per observation, and the stacks are made in the program. `age` says how many
of the older frames belong to the same episode. Processes that only step environments import this
module, so it does not import JAX; functions take `numpy` or `jax.numpy` as `xp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flatout import tree
from flatout.types import Array, Obs, ObservationSpec, ObsSpec

MAX_AGE = 255
NEXT_AGE = np.minimum(np.arange(MAX_AGE + 1) + 1, MAX_AGE).astype(np.uint8)
"""The age that follows each age. A lookup is one operation; computing the age takes three."""


def frame_spec(spec: ObsSpec) -> ObsSpec:
    """Return the spec of observations without the older frames of their stacks."""
    return tree.map(lambda leaf: leaf.frame, spec)


def most_frames(spec: ObsSpec) -> int:
    """Return S, the most frames that are stacked in an array of an observation."""
    return max(leaf.stack for leaf in tree.leaves(spec))


def newest(spec: ObsSpec, obs: Obs) -> Obs:
    """Return the newest frames ``[..., H, W, C]`` of observations ``[..., H, W, S * C]``. Arrays
    that hold only the newest frame, or are no stacks, are returned as they are."""

    def cut(spec: ObservationSpec, leaf: Array) -> Array:
        return leaf if spec.stack == 1 else leaf[..., -spec.frame.shape[-1] :]

    return tree.map(cut, spec, obs)


def put(target: Obs, index: Any, obs: Obs) -> None:
    """Set ``leaf[index]`` of NumPy arrays ``[N, ...]`` to observations. Where they have room for
    fewer frames than a stack has, set it to the newest frames."""
    for (_, array), (_, leaf) in zip(tree.items(target), tree.items(obs), strict=True):
        whole = array.ndim < 4 or leaf.shape[-1] == array.shape[-1]
        array[index] = leaf if whole else leaf[..., -array.shape[-1] :]


def join_stack(xp: Any, frames: Array, axis: int) -> Array:
    """Return images ``[..., H, W, S * C]`` of frames ``[..., H, W, C]`` that have another axis, of
    the S frames of each image, the newest last."""
    stacked = xp.moveaxis(frames, axis, -2)
    return stacked.reshape(*stacked.shape[:-2], -1)


def stack_frames(xp: Any, spec: ObservationSpec, frames: Sequence[Array], age: Array) -> Array:
    """Return images ``[..., H, W, S * C]`` from their S frames ``[..., H, W, C]``, the newest last.

    Frames of before the episode are replaced by its first frame, or by zeros
    (`ObservationSpec.stack_pad`).

    Args:
        age: uint8 ``[...]``, the steps since the episode's first observation.
    """
    *older, frame = frames
    stack = [frame]
    for distance, before in enumerate(reversed(older), 1):
        pad = np.zeros((), frame.dtype) if spec.stack_pad == "zeros" else stack[0]
        stack.insert(0, xp.where((age >= distance)[..., None, None, None], before, pad))
    return join_stack(xp, xp.stack(stack), 0)


def stack_rows(xp: Any, spec: ObsSpec, rows: Obs, age: Array) -> Obs:
    """Return whole observations ``[R, N, ...]`` from arrays of frames, a tree.

    Args:
        rows: ``[R + S - 1, N, ...]``: the frames of R rows, and before them the S - 1 older frames
            of the first row. S is that of each array.
        age: uint8 ``[R, N]``.
    """

    def whole(spec: ObservationSpec, leaf: Array) -> Array:
        if spec.stack == 1:
            return leaf
        frames = [leaf[at : at + len(age)] for at in range(spec.stack)]
        return stack_frames(xp, spec, frames, age)

    return tree.map(whole, spec, rows)
