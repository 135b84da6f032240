"""Hindsight replay (Andrychowicz et al., 2017): sampled transitions get a goal that their episode
achieved later, and the rewards of that goal.

`HostReplay` calls it. The strategy is the paper's "future": of every k + 1 sampled transitions, k
get the goal that was achieved after a step of the same episode, drawn uniformly from their own step
to the newest stored one. What is drawn is a function of the update's number and of the stored
steps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flatout.engine.replay.ring import Gathered, Ring, RingLayout
from flatout.envs.goals import ACHIEVED, DESIRED

UNFINISHED = np.iinfo(np.int32).max
"""The last step of an episode that has not ended."""

Rewards = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""``(achieved goals [B, ...], desired goals [B, ...]) -> rewards [B]``."""


class EpisodeEnds:
    """The row of the last step of each stored step's episode.

    Args:
        layout: the ring's sizes.
    """

    def __init__(self, layout: RingLayout) -> None:
        self._length = layout.length
        self._last = np.full((layout.length, layout.num_envs), UNFINISHED, np.int32)
        self._begun = np.zeros(layout.num_envs, np.int64)  # the first row of the current episode

    def add(self, first: int, ended: np.ndarray) -> None:
        """Add rows from `first` on; ``ended [T, N]`` says which steps ended an episode."""
        rows = first + np.arange(len(ended))
        self._last[rows % self._length] = UNFINISHED
        for t, env in np.argwhere(ended):
            self._end(int(env), first + int(t), first + len(ended))

    def cut(self, env: int, row: int) -> None:
        """End the current episode of an environment with the newest step, which is in `row`."""
        self._end(env, row, row + 1)

    def _end(self, env: int, row: int, rows_written: int) -> None:
        # The slots of older rows are those of rows that follow the episode.
        begun = max(int(self._begun[env]), rows_written - self._length)
        self._last[np.arange(begun, row + 1) % self._length, env] = row
        self._begun[env] = row + 1

    def restore(self, first: int, ended: np.ndarray) -> None:
        """Replace all rows by those from `first` on; see `add`."""
        self._last.fill(UNFINISHED)
        self._begun.fill(first)
        self.add(first, ended)

    def last(self, row: np.ndarray, env: np.ndarray, rows_written: int) -> np.ndarray:
        """Return the rows of the last stored steps of the steps' episodes."""
        return np.minimum(self._last[row % self._length, env], rows_written - 1)


class Hindsight:
    """The goals and rewards of sampled transitions.

    Args:
        layout: the ring's sizes.
        count: k, the transitions of every k + 1 that get another goal.
        rewards: computes rewards.
        sign: whether learning uses the sign of rewards.
    """

    def __init__(self, layout: RingLayout, count: int, rewards: Rewards, sign: bool) -> None:
        self._layout, self._count, self._rewards, self._sign = layout, count, rewards, sign

    def draw(
        self, ends: EpisodeEnds, rows_written: int, first: int, row: np.ndarray, env: np.ndarray,
        word: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        """Return for each of the steps ``[..., K, B]`` of K updates the row of the step whose
        achieved goal it gets, or -1 if it keeps its own goal.

        Args:
            first: the number of the first of these updates since the run's start.
            row, env: the sampled steps.
            word: random words, uint32 ``[..., K, B]``.
        """
        updates, size = row.shape[-2:]
        number = (first + np.arange(updates))[:, None] * size + np.arange(size)
        ahead = ends.last(row, env, rows_written) - row + 1
        later = row + (word % ahead.astype(np.uint32)).astype(np.int32)
        return np.where(number % (self._count + 1) == self._count, -1, later)

    def relabel(
        self, gathered: Gathered, ring: Ring, row: np.ndarray, env: np.ndarray, later: np.ndarray
    ) -> Gathered:
        """Replace goals and rewards of gathered transitions, in place.

        Args:
            row, env: the steps with which they begin.
            later: a result of `draw`.
        """
        which = later >= 0
        if not which.any():
            return gathered
        row, env, later, steps = row[which], env[which], later[which], gathered.steps[which]
        goal = self._achieved(ring, later, env)
        gathered.frames[DESIRED][which] = goal[:, None]
        # Rewards beyond a transition's last step do not count.
        index = np.minimum(np.arange(self._layout.n_step), steps[:, None] - 1)
        after = self._achieved(
            ring, (row[:, None] + index).reshape(-1), np.repeat(env, index.shape[1])
        )
        rewards = self._rewards(after, np.repeat(goal, index.shape[1], 0))
        rewards = np.sign(rewards) if self._sign else rewards
        gathered.rewards[which] = rewards.reshape(index.shape)
        return gathered

    def _achieved(self, ring: Ring, row: np.ndarray, env: np.ndarray) -> np.ndarray:
        """Return the goals ``[B, ...]`` that were achieved after steps."""
        length, num_envs = self._layout.length, self._layout.num_envs
        goals = ring.frames[ACHIEVED][(row + 1) % length * num_envs + env]
        here = row % length * num_envs + env
        over = ring.truncated[here]  # with hindsight, all ends of episodes are
        finals = ring.finals[ACHIEVED]
        goals[over] = finals[ring.final_id[here[over]] % len(finals)]
        return goals
