"""The axis of members in the state of one program that several runs share (`FusedPopulation`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from flatout.learner.state import RunState

MEMBERS = "members"
"""The name of the axis of members."""


def for_all(flag: jax.Array) -> jax.Array:
    """Return a flag that is set for all members if it is set for one, so that all take the same
    branch."""
    return jax.lax.pmax(flag.astype(np.int32), MEMBERS) > 0


@dataclass(frozen=True)
class MemberSlice:
    """A view of one member's part of the state of all members, which `FusedPopulation` owns.

    Attributes:
        whole: the state of all members.
        keys: the `Loop.keys` of all members.
        member_index: the member's index on the axis of members.
        axes: member axes of `whole`: None for parts that all members share, 0 for the others.
    """

    whole: RunState
    keys: tuple[Any, ...]
    member_index: int
    axes: Any

    @property
    def learned(self) -> list[Any]:
        """A copy of this member's `RunState.learned`."""
        return _row(self.whole.learned, np.int32(self.member_index))

    def extract(self) -> RunState:
        """Return a copy of this member's state, without the axis of members."""
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
