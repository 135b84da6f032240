"""The state of a run. Schedules own it; the learner takes and returns it."""

from __future__ import annotations

from typing import Any, NamedTuple


class RunState(NamedTuple):
    """The state of a run between two iterations, a pytree. Its owner is the schedule.

    `Learner.learn` and a compiled loop return a new state in exchange for the one that they are
    given, whose arrays may then be reused: a caller that needs the old one copies it first.

    Attributes:
        learned: the leaves of the algorithm's state, on the learning devices.
        store: the experience that the buffer keeps, on the learning devices, or in host memory,
            where it is written in place.
        counts: the buffer's counters, which the host or a compiled loop advances.
        environments: those that step on a device; None for others, which the sampler owns.
    """

    learned: Any
    store: Any
    counts: Any = ()
    environments: Any = None
