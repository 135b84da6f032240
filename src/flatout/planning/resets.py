"""The resets of environments: how often they happen, and how long others wait for them. Pure.

An environment whose episode ends is reset within its step, and all that step in the same turn wait
for the slowest one. Long resets of different processes rarely fall into one turn, so that the
expected longest is far more than the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated

import numpy as np
from msgspec import Meta

Seconds = Annotated[float, Meta(ge=0.0, lt=1e6)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]

GRID = 4096
"""Points at which the distribution of a sum of resets is computed."""


@dataclass(frozen=True)
class Resets:
    """The resets of one run's environments.

    Attributes:
        seconds: of one reset: means of equal slices of the sorted durations.
        ends: episodes that end per step of one environment: 1 / their mean length.
        computing: share of a reset in which a core works; the rest is sleep.
        together: whether all environments end their episodes in the same step.
        spares: whether spare environments are reset in the background (``--spare-envs all``).
    """

    seconds: Annotated[tuple[Seconds, ...], Meta(min_length=1)] = (0.0,)
    ends: Share = 0.0
    computing: Share = 1.0
    together: bool = False
    spares: bool = False

    @property
    def mean_s(self) -> float:
        """Mean seconds of resets for each step of an environment."""
        return self.ends * sum(self.seconds) / len(self.seconds)

    def faster(self, times: float) -> Resets:
        """Return resets that are `times` times as fast."""
        return replace(self, seconds=tuple(seconds / times for seconds in self.seconds))

    def slowest_s(self, envs: int, turns: int, workers: int) -> float:
        """Return the expected seconds of resets of the slowest of equal workers.

        Args:
            envs: environments of each worker, which are reset one after another.
            turns: steps of each environment that the workers make before they wait for each other.
        """
        if not self.mean_s:
            return 0.0
        if not self.together:
            return longest_s(self.seconds, self.ends, envs * turns, workers)
        # In a turn with ends all environments are reset.
        ends = turns * self.ends
        counted = envs * max(math.ceil(ends), 1)
        return longest_s(self.seconds, 1.0, counted, workers) * ends * envs / counted


NO_RESETS = Resets()


@dataclass(frozen=True)
class ResetWait:
    """The part of resets in one turn of a worker, or of this process.

    Attributes:
        work: seconds in which a core works before the turn's answer.
        sleep: seconds in which it waits, for its own resets or for those of the slowest worker.
        later: seconds of work in the background, which may take place after the answer.
    """

    work: float = 0.0
    sleep: float = 0.0
    later: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds by which the turn is longer."""
        return self.work + self.sleep


def reset_wait(resets: Resets, envs: int, turns: int, workers: int, step_s: float) -> ResetWait:
    """Return what each of equal workers spends on resets in a turn.

    Args:
        envs, turns: as for `Resets.slowest_s`; 1 turn if the workers wait for each other at every
            step.
        step_s: seconds of a turn without resets.
    """
    mean = envs * resets.mean_s
    work, sleep = mean * resets.computing, mean * (1.0 - resets.computing)
    if not resets.spares:
        slowest = resets.slowest_s(envs, turns, workers) / turns
        return ResetWait(work, sleep + max(slowest - mean, 0.0))
    # A spare has a whole episode to sleep in: 1 / ends turns. Python code that computes does not
    # run at the same time as the steps of the same process.
    asleep = resets.mean_s * (1.0 - resets.computing)
    return ResetWait(sleep=max(asleep - step_s, 0.0), later=work)


@lru_cache(maxsize=4096)
def longest_s(seconds: Sequence[float], chance: float, count: int, workers: int) -> float:
    """Return the expected maximum over `workers` of their sums of resets.

    Args:
        seconds: equally probable durations of one reset.
        chance: of a reset in each of a worker's `count` steps, independently of the others.
    """
    if workers == 1:  # nobody else is waited for
        return chance * count * sum(seconds) / len(seconds)
    expected = chance * count
    most = min(float(count), expected + 8.0 * math.sqrt(expected) + 8.0)
    step = most * max(seconds) / (GRID - 2)
    if step <= 0.0:
        return 0.0
    one = np.zeros(2 * GRID)
    for duration in seconds:  # shared by two neighbours, so that the mean is exact
        place, part = divmod(duration / step, 1.0)
        one[int(place)] += (1.0 - part) / len(seconds)
        one[int(place) + 1] += part / len(seconds)
    both = 1.0 - chance + chance * np.fft.rfft(one)
    shares = np.fft.irfft(both**count, 2 * GRID)[:GRID]
    within = np.clip(np.cumsum(shares), 0.0, 1.0)
    return float(np.sum(1.0 - within**workers) * step)
