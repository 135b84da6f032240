"""Records about episodes that span trajectories: mean action values, and actions to replay.

`CentralSampler` keeps them."""

from __future__ import annotations

import math

import numpy as np

MAX_REPLAYED_STEPS = 200_000
"""An environment with more steps since its seeded reset is restarted on resume, not replayed."""
MAX_REPLAYED_BYTES = 256 << 20
"""So is one whose actions, with those of the other environments at the same steps, take more."""


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
    """Each environment's actions since its last seeded reset, kept in blocks of one trajectory."""

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
            starts: for each environment, the first row after its last seeded reset in this
                trajectory; 0 if it had none.
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
        """Return each environment's actions since its seeded reset; None if no longer kept."""
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
        """Replace the log by each environment's actions since its seeded reset."""
        longest = max(actions, key=len)
        rows = len(longest)
        self._first, self._next = 0, rows
        self._starts = [rows - len(one) for one in actions]
        block = np.zeros((rows, len(actions), *longest.shape[1:]), longest.dtype)
        for env, one in enumerate(actions):
            if len(one):
                block[rows - len(one) :, env] = one
        self._blocks = [block] if rows else []
