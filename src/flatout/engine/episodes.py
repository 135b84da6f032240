"""Records about episodes that span trajectories: mean action values, and actions to replay.

`CentralSampler` keeps them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

MAX_REPLAYED_STEPS = 200_000
"""An environment with more steps to replay is restarted on resume."""
MAX_REPLAYED_BYTES = 256 << 20
"""So is one whose actions, with those of the other environments at the same steps, take more."""
LISTED = 8
"""The most environments whose numbers one sentence lists."""


class EpisodeValues:
    """The mean of max Q in each episode, over the steps at which the network ran.

    If it ran at no step of an episode, that episode has the mean of the one before it.
    """

    def __init__(self, num_envs: int) -> None:
        # [sum, count] of each episode's values; [last episode's mean, -1] before its first value.
        self._sums = [[0.0, 0.0] for _ in range(num_envs)]
        self._next = self._sums

    def collect(self, rows: np.ndarray, ends: list[tuple[int, int]]) -> list[float]:
        """Add a trajectory's values.

        Args:
            rows: largest action values ``[T, N]``, NaN where the network did not run.
            ends: row and environment of each episode's end, in order.

        Returns:
            The mean of each ended episode, in the order of `ends`; NaN if the network never ran.
        """
        # Lists, because a short trajectory has few values: an array operation would cost more.
        columns = rows.T.tolist()
        start = [0] * len(columns)
        sums = [one.copy() for one in self._sums]
        means: list[float] = []

        def add(env: int, end: int | None) -> list[float]:
            seen = [value for value in columns[env][start[env] : end] if value == value]
            if seen and sums[env][1] < 0:
                sums[env] = [0.0, 0.0]
            sums[env][0] += sum(seen)
            sums[env][1] += len(seen)
            return sums[env]

        for row, env in ends:
            total, count = add(env, row + 1)
            mean = total if count < 0 else total / count if count else math.nan
            means.append(mean)
            sums[env], start[env] = [0.0, 0.0] if math.isnan(mean) else [mean, -1.0], row + 1
        for env in range(len(columns)):
            add(env, None)
        self._next = sums
        return means

    def commit(self) -> None:
        """Accept the last trajectory's values: `state` now includes them."""
        self._sums = self._next

    def forget(self, env: int) -> None:
        """Drop the values of an environment that was restarted."""
        self._sums[env] = [0.0, 0.0]

    def state(self) -> list[list[float]]:
        return [one.copy() for one in self._sums]

    def restore(self, state: list[list[float]]) -> None:
        self._sums = [list(map(float, one)) for one in np.reshape(state, (len(self._sums), 2))]


class ActionLog:
    """Each environment's actions to replay (see `Envs`), kept in blocks of one trajectory."""

    def __init__(self, num_envs: int) -> None:
        self._blocks: list[np.ndarray] = []  # each [t, N, ...]
        self._first = 0  # row number of the first block's first row
        self._next = 0
        self._starts = [0] * num_envs

    def truncate(self, env: int) -> None:
        """Drop an environment's actions so far: its episode begins with the next trajectory."""
        self._starts[env] = self._next

    def append(self, actions: np.ndarray, starts: list[int]) -> None:
        """Add a trajectory's actions ``[t, N, ...]``.

        Args:
            actions: the policy's actions.
            starts: for each environment, the first row in this trajectory that must be replayed;
                0 if earlier ones must be, too.
        """
        for env, start in enumerate(starts):
            if start:
                self._starts[env] = self._next + start
        self._blocks.append(actions)
        self._next += len(actions)
        most_rows = max(MAX_REPLAYED_BYTES * len(actions) // max(actions.nbytes, 1), 1)
        oldest = max(min(self._starts), self._next - min(MAX_REPLAYED_STEPS, most_rows))
        while self._blocks and self._first + len(self._blocks[0]) <= oldest:
            self._first += len(self._blocks.pop(0))

    def current(self) -> list[np.ndarray | None]:
        """Return each environment's actions to replay; None if no longer kept."""
        if not self._blocks:
            return [self.empty() for _ in self._starts]
        rows = np.concatenate(self._blocks)
        return [
            None if start < self._first else rows[start - self._first :, env]
            for env, start in enumerate(self._starts)
        ]

    def empty(self) -> np.ndarray:
        return self._blocks[0][:0, 0] if self._blocks else np.zeros((0,), np.int32)

    def restore(self, actions: list[np.ndarray]) -> None:
        """Replace the log by each environment's actions to replay."""
        longest = max(actions, key=len)
        rows = len(longest)
        self._first, self._next = 0, rows
        self._starts = [rows - len(one) for one in actions]
        block = np.zeros((rows, len(actions), *longest.shape[1:]), longest.dtype)
        for env, one in enumerate(actions):
            if len(one):
                block[rows - len(one) :, env] = one
        self._blocks = [block] if rows else []


def restart_notes(reasons: Mapping[str, Sequence[tuple[int, int]]]) -> list[str]:
    """Return a sentence for each reason for which environments were restarted.

    Args:
        reasons: by reason, the environments' numbers in the run with those of their episodes.
    """
    return [_restart_note(reason, found) for reason, found in reasons.items()]


def _restart_note(reason: str, found: Sequence[tuple[int, int]]) -> str:
    if len(found) == 1:
        number, episode = found[0]
        return f"environment {number}: episode {episode} {reason}; it was restarted"
    numbers = ", ".join(str(number) for number, _ in found[:LISTED])
    more = len(found) - LISTED
    some = f"{numbers} and {more} more" if more > 0 else numbers
    return f"environments {some}: the episode of each {reason}; they were restarted"
