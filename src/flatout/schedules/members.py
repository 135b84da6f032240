"""The axis of members in the carry of one program that several runs share (`FusedPopulation`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

MEMBERS = "members"
"""The name of the axis of members."""


def for_all(flag: jax.Array) -> jax.Array:
    """Return a flag that is set for all members if it is set for one, so that all take the same
    branch."""
    return jax.lax.pmax(flag.astype(np.int32), MEMBERS) > 0


@dataclass(frozen=True)
class MemberSlice:
    """One member's part of the carry of all members.

    Attributes:
        whole: the carry of all members.
        keys: the `Loop.keys` of all members.
        member_index: the member's index on the axis of members.
        axes: member axes of `whole`: None for parts that all members share, 0 for the others.
    """

    whole: Any
    keys: tuple[Any, ...]
    member_index: int
    axes: Any

    def extract(self) -> Any:
        """Return this member's carry, without the axis of members."""
        axes, structure = jax.tree.flatten(self.axes, is_leaf=lambda axis: axis is None)
        parts = structure.flatten_up_to(self.whole)
        of_members = [part for axis, part in zip(axes, parts, strict=True) if axis is not None]
        own = iter(_row(of_members, np.int32(self.member_index)))
        return structure.unflatten(
            [part if axis is None else next(own) for axis, part in zip(axes, parts, strict=True)]
        )


@jax.jit
def _row(tree: Any, member_index: jax.Array) -> Any:
    """Return one row of every leaf, in one program. Indexing each leaf would run one program for
    each."""
    return jax.tree.map(lambda leaf: leaf[member_index], tree)
