"""What a sampler keeps of episodes beside trajectories: mean values, and actions to replay."""

from __future__ import annotations

import math

import numpy as np

MAX_REPLAYED_STEPS = 200_000
"""Episodes longer than this restart on resume instead of being replayed."""


class EpisodeValues:
    """Means over episodes of the largest action value at each acting step.

    An episode at none of whose steps the network ran has the mean of the one before it.
    """

    def __init__(self, num_envs: int) -> None:
        # Of values, and how many; -1: none yet, and the sum is the mean of the episode before.
        self._sums = [[0.0, 0.0] for _ in range(num_envs)]
        self._next = self._sums

    def collect(self, rows: np.ndarray, ends: list[tuple[int, int]]) -> list[float]:
        """Add a trajectory's values.

        Args:
            rows: ``[T, N]``, NaN where the network did not run.
            ends: row and environment of each episode's end, in order.

        Returns:
            The mean of each ended episode, NaN where the network has never run.
        """
        # Lists: a trajectory of few steps has so few values that each array costs more than they.
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
        """Make the last trajectory part of the past."""
        self._sums = self._next

    def forget(self, env: int) -> None:
        """An environment began anew."""
        self._sums[env] = [0.0, 0.0]

    def state(self) -> list[list[float]]:
        return [one.copy() for one in self._sums]

    def restore(self, state: list[list[float]]) -> None:
        self._sums = [list(map(float, one)) for one in np.reshape(state, (len(self._sums), 2))]


class ActionLog:
    """The actions of every environment's current episode, kept as whole trajectories' blocks."""

    def __init__(self, num_envs: int) -> None:
        self._blocks: list[np.ndarray] = []  # each [t, N, ...]
        self._first = 0  # row number of the first block's first row
        self._next = 0
        self._starts = [0] * num_envs

    def truncate(self, env: int) -> None:
        """An environment's episode begins with the next trajectory."""
        self._starts[env] = self._next

    def append(self, actions: np.ndarray, starts: list[int]) -> None:
        """Add a trajectory's actions ``[t, N, ...]``.

        Args:
            actions: as the policy gave them.
            starts: for each environment the row from which on its actions are needed, 0 where that
                lies before this trajectory.
        """
        for env, start in enumerate(starts):
            if start:
                self._starts[env] = self._next + start
        self._blocks.append(actions)
        self._next += len(actions)
        oldest = max(min(self._starts), self._next - MAX_REPLAYED_STEPS)
        while self._blocks and self._first + len(self._blocks[0]) <= oldest:
            self._first += len(self._blocks.pop(0))

    def current(self) -> list[np.ndarray | None]:
        """Each environment's actions since its episode began; None where no longer kept."""
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
        """Take over each environment's actions since its episode began."""
        longest = max(actions, key=len)
        rows = len(longest)
        self._first, self._next = 0, rows
        self._starts = [rows - len(one) for one in actions]
        block = np.zeros((rows, len(actions), *longest.shape[1:]), longest.dtype)
        for env, one in enumerate(actions):
            if len(one):
                block[rows - len(one) :, env] = one
        self._blocks = [block] if rows else []
