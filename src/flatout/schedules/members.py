"""The axis of members in what one program carries for several runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

MEMBERS = "members"
"""The axis."""


def for_all(flag: jax.Array) -> jax.Array:
    """A flag that is set for all members where it is for one: branches are taken together."""
    return jax.lax.pmax(flag.astype(np.int32), MEMBERS) > 0


@dataclass(frozen=True)
class Part:
    """One member's share of what all carry.

    Attributes:
        whole: what all carry, and `keys` of theirs.
        slot: its place.
        axes: which of it each member has for itself.
    """

    whole: Any
    keys: tuple[Any, ...]
    slot: int
    axes: Any

    def taken(self) -> Any:
        """It alone."""
        axes, structure = jax.tree.flatten(self.axes, is_leaf=lambda axis: axis is None)
        parts = structure.flatten_up_to(self.whole)
        of_members = [part for axis, part in zip(axes, parts, strict=True) if axis is not None]
        own = iter(_row(of_members, np.int32(self.slot)))
        return structure.unflatten(
            [part if axis is None else next(own) for axis, part in zip(axes, parts, strict=True)]
        )


@jax.jit
def _row(tree: Any, slot: jax.Array) -> Any:
    """One row of every leaf: one program, where each leaf's own indexing would be one."""
    return jax.tree.map(lambda leaf: leaf[slot], tree)
