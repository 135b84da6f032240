"""Messages between actor processes and their parent."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatout.samplers.processes.shared_memory import Fields

if TYPE_CHECKING:
    from flatout.config.schema import EnvConfig, TrainConfig

COMMAND = struct.Struct("<BBiq")
"""A command, a flag, a slot, a number."""

STEP, RESET, REPLAY = range(3)
START, COLLECT, COMMIT, STATE, RESTORE = range(3, 8)
WITH_MORE = frozenset({RESET, REPLAY, START, RESTORE})
"""Commands with further data."""

SHARED = ("obs", "rewards", "terminated", "truncated", "valid", "ended")
"""Arrays of a trajectory that may be in the arena."""

PARAMS = "params/"
"""Prefix of the actor's parameters in the arena."""

BEAT_S = 0.1
"""Seconds between a worker's progress reports in long commands."""

DONE, FAILED, REFUSED = b"d", b"f", b"r"
"""Replies. After FAILED and REFUSED a sentence and a traceback follow, and the process ends; after
REFUSED a restart would not help."""

CLOSING = -1
"""A worker's progress counter while it closes its environments."""

SINCE, EPISODE, ORIGIN = range(3)
"""Columns of an environment's counters."""

SPENT = "spent"
"""The arena's array of each worker's times, by its first environment."""

ENV_S, ACT_S, TURNS, SQUARE = range(4)
"""Its columns: seconds of stepping and of acting, answers, sum of their squared seconds."""

TERMINATED, TRUNCATED, LIFE_LOST, ENDED = 1, 2, 4, 8
"""Bits of an environment's flags after a step."""


@dataclass(frozen=True)
class Local:
    """Settings of a worker that acts by itself.

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
    """A worker's environments, as sent to it.

    Attributes:
        registered: a Gymnasium spec that the parent's program registered, or None.
        config: the environment and its preparation.
        source: a function that makes an environment, instead of the configured id.
        first: the number of its first environment.
        count: E, its number of environments.
        seed: the run's seed.
        reseed_after: see `AtariEnvs`.
        arena: the shared memory's descriptor and fields.
        local: how it acts by itself; None if the parent sends actions.
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
