"""The state of a run. Schedules own it; the learner takes and returns it."""

from __future__ import annotations

from typing import Any, NamedTuple


class RunState(NamedTuple):
    """The state of a run between two iterations, a pytree. Its owner is the schedule.

    `Learner.learn`, a sampler's `collect` and a compiled loop return a new state in exchange for
    the one that they are given, whose arrays may then be reused: a caller that needs the old one
    copies it first.

    Attributes:
        learned: the leaves of the algorithm's state, on the learning devices.
        store: the experience that the buffer keeps: arrays on the learning devices that the
            compiled program writes, or arrays in host memory that are written in place. () for
            none.
        counts: the buffer's counters: of a host that ingests trajectories, or arrays in a compiled
            loop. () for none.
        environments: the state of environments on a device. None for others, which are objects and
            processes of the sampler.
    """

    learned: list[Any]
    store: Any
    counts: Any
    environments: Any = None
