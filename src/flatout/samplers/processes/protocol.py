"""What actor processes and their parent tell each other."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatout.samplers.processes.shared_memory import Fields

if TYPE_CHECKING:
    from flatout.config.schema import EnvConfig, TrainConfig

COMMAND = struct.Struct("<BBiq")
"""Which command, a flag, a slot, a number."""

STEP, RESET, REPLAY = range(3)
START, COLLECT, COMMIT, STATE, RESTORE = range(3, 8)
WITH_MORE = frozenset({RESET, REPLAY, START, RESTORE})
"""Commands that something follows."""

SHARED = ("obs", "rewards", "terminated", "truncated", "valid", "ended")
"""The arrays of a trajectory, of which the arena holds those that workers write."""

PARAMS = "params/"
"""What the actor's parameters are named after in the arena."""

BEAT_S = 0.1
"""Seconds between a worker's signs of life within long commands."""

DONE, FAILED, REFUSED = b"d", b"f", b"r"
"""Replies: it is done; it failed, with a sentence and a traceback, and the process ends; the same
where starting again would not help."""

CLOSING = -1
"""What a worker's count of steps becomes once it closes its environments."""

SINCE, EPISODE, ORIGIN = range(3)
"""The columns of an environment's counters."""

SPENT = "spent"
"""The arena's array of what each worker has done, by its first environment."""

ENV_S, ACT_S, TURNS, SQUARE = range(4)
"""Its columns: seconds of stepping and of acting, answers, their squared seconds."""

TERMINATED, TRUNCATED, LIFE_LOST, ENDED = 1, 2, 4, 8
"""Bits of an environment's flags after a step."""


@dataclass(frozen=True)
class Local:
    """What a worker needs that acts by itself.

    Attributes:
        config: the run's settings.
        rollout: see `samplers.make.RolloutSpec`.
        network: a custom torso, or None.
    """

    config: TrainConfig
    rollout: Any
    network: Any


@dataclass(frozen=True)
class Job:
    """What a worker steps, as it travels to it.

    Attributes:
        registered: a Gymnasium spec that the parent's program registered, or None.
        config: the environment and its preparation.
        source: a function that makes one environment, instead of the configured id.
        first: the number of its first environment.
        count: E, how many it steps.
        seed: the run's seed.
        reseed_after: see `AtariEnvs`.
        arena: the shared memory's descriptor and fields.
        local: how it acts by itself; None where its actions come from the parent.
    """

    registered: Any
    config: EnvConfig
    source: Any
    first: int
    count: int
    seed: int
    reseed_after: int
    arena: tuple[int, Fields]
    local: Local | None = None
