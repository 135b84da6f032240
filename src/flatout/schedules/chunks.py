"""What the iterations of one dispatch begin with, and what they tell the host."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from flatout.samplers.rollout_state import Ends, RolloutState
from flatout.schedules.members import Part
from flatout.types import Episodes


class Carry(NamedTuple):
    """What one iteration hands to the next: the learning state's leaves, the buffer's device state
    and counts, and the environments."""

    leaves: list[Any]
    store: Any
    counts: Any
    rolling: RolloutState


class Told(NamedTuple):
    """What a chunk's iterations tell, ``[M, ...]`` each: scalars of `Learner.metrics`, environment
    steps, and where episodes ended."""

    scalars: Any
    steps: Any
    ends: Ends


Iteration = Callable[[Carry, jax.Array, Any, jax.Array, jax.Array], tuple[Carry, Told]]
"""``(carry, key, buffer_key, act_key, hp) -> carry, told``, of one shard; pure."""

TOLD = Told(None, None, 0)  # type: ignore[arg-type]
"""Which of it each shard has for itself."""


@dataclass
class Chunk:
    """Iterations that one dispatch made.

    Attributes:
        before: what they began with.
        count: how many they were.
        taken: how many of them count so far.
        told: of each of them.
        episodes: that ended in them, with `places`, where the k-th iteration's begin.
        infos: of these episodes.
    """

    before: Carry | Part
    count: int
    told: Told
    episodes: Episodes
    places: np.ndarray
    infos: list[dict[str, float] | None]
    taken: int = 0


class Made(NamedTuple):
    """A chunk as the program left it: the carry, what it tells (memory that a later chunk writes
    over), and the seconds that it took."""

    after: Carry
    room: Told
    took: float


class Ahead(NamedTuple):
    """A chunk that runs, or waits for the one before, while the host still reads what that told.

    Attributes:
        after: what it goes on from.
        made: what becomes of it.
    """

    after: Carry | Future[Made]
    length: int
    made: Future[Made]

    @property
    def before(self) -> Carry:
        """What it begins with, once that is known."""
        return self.after.result().after if isinstance(self.after, Future) else self.after
