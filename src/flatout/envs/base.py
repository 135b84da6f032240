"""The interface of N environments, step 5 of the data flow, which samplers, worker processes and
evaluation call. `Task.open` chooses the implementation."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from flatout.envs.mask_places import IGNORE
from flatout.errors import InvalidReturn
from flatout.spans import NO_RESETS, ResetTimes
from flatout.types import Episode, Obs

Ended = Callable[[int, bool, bool, Obs], None]
"""Callback ``(env, terminated, truncated, final_obs)`` at the end of an episode. `final_obs` is
overwritten right after the call: copy it to keep it."""


TRAINING, EVALUATION = 0, 1
"""Streams of episode seeds. They differ, so that evaluation never repeats a training episode."""


def episode_seed(seed: int, stream: int, env: int, episode: int) -> int:
    """Return the seed of one episode: 31 bits, which every environment accepts."""
    sequence = np.random.SeedSequence(seed, spawn_key=(stream, env, episode))
    return int(sequence.generate_state(1)[0]) >> 1


class Envs(ABC):
    """N environments, whatever their source, that all implement a step in the same way.

    When an episode ends, the final observation is passed to the `ended` callback, and the
    environment is reset within the same step. An episode can be reproduced from its number and its
    actions. Observations are trees (`flatout.tree`): arrays, or dicts of arrays. Where the arrays
    that receive observations have room for fewer frames than a stack has, they get the newest ones.

    Args:
        num_envs: N.
        name: the environment's name, for messages.
        seed: the run's seed.
        stream: `TRAINING` or `EVALUATION`.
        first: the first environment's number in the run, for seeds and messages.

    Attributes:
        episode: the number of each environment's current episode, -1 before the first.
        returns: undiscounted raw return of each current episode.
        lengths: number of steps of each current episode.
        seeded_episode: the number of the episode that began with each environment's last seeded
            reset. `replay_all` begins there. If every episode is seeded, it equals `episode`.
        steps_to_replay: the number of last actions that `replay_all` needs: those since that reset,
            or those of the current episode, if nothing that was played before changes it. If every
            episode is seeded, both are the same.
        life_lost: ``[N]`` bool, True where the last step lost a life without ending the episode;
            valid until the next step. None for environments without lives.
        reset_times: the resets within steps so far, at which the next episodes began.
        spares: how many of the environments have a spare, and `spare_mb` the memory of all spares
            in MiB.
    """

    def __init__(self, num_envs: int, name: str, seed: int, stream: int, first: int) -> None:
        self._name, self._seed, self._stream, self._first = name, seed, stream, first
        self.num_envs = num_envs
        self.episode = [-1] * num_envs
        self.returns = [0.0] * num_envs
        self.lengths = [0] * num_envs
        self.seeded_episode, self.steps_to_replay = self.episode, self.lengths
        self.life_lost: np.ndarray | None = None
        self.reset_times = NO_RESETS
        self.spares, self.spare_mb = 0, 0.0

    def finished(self, env: int) -> Episode:
        """Return the current episode. Call this when the episode has ended, before the reset: from
        within `ended`, or when the caller itself ends the episode."""
        return Episode(self._first + env, self.returns[env], self.lengths[env])

    def _count_resets(self, count: int, began: float, took: float | None = None) -> None:
        """Count `count` resets within a step, the first of which began at `began`, a reading of
        `time.perf_counter`. `took` has their seconds if they happened in the background."""
        waited = time.perf_counter() - began
        took = waited if took is None else took
        resets = ResetTimes(count, took, took * took / count, waited)
        self.reset_times = self.reset_times.plus(resets)

    def _seed_of(self, env: int, number: int) -> int:
        return episode_seed(self._seed, self._stream, self._first + env, number)

    def _label(self, env: int) -> str:
        return f"environment {self._first + env} ({self._name})"

    def _invalid_mask(self, env: int, what: str, episode: int, step: int) -> InvalidReturn:
        """Return the error for a mask; `what` says what is wrong with it."""
        when = f"in step {step}" if step else "in the reset"
        return InvalidReturn(
            f"{self._label(env)} gave {what}, {when} of episode {episode}: correct it, or {IGNORE}."
        )

    @abstractmethod
    def reset(self, env: int, out: Obs, episode: int | None = None) -> None:
        """Start an episode of one environment and write its first observation to ``out[env]``.

        Args:
            episode: the episode's number; None means the next one.
        """

    @abstractmethod
    def reset_all(self, out: Obs, episode: int | None = None) -> None:
        """Call `reset` for every environment, or reset all in one call if that is faster."""

    @abstractmethod
    def step(
        self,
        actions: np.ndarray,
        out: Obs,
        rewards: np.ndarray,
        ended: Ended,
        active: Sequence[int] | None = None,
    ) -> None:
        """Step every environment once, or only the `active` ones; the rest keep their state.

        Args:
            actions: ``[N, ...]`` as `act` chose them.
            out: ``[N, ...]``, receives the observations. If an episode ended, this is the first
                observation of the next episode.
            rewards: ``[N]``, receives the rewards.
            ended: called for each episode that ended, before the reset.
            active: environments to step, in increasing order; None means all.

        Raises:
            EnvironmentFailure: an environment raised, or returned an invalid value.
        """

    @abstractmethod
    def replay_all(
        self,
        seeded: Sequence[int],
        episodes: Sequence[int],
        actions: Sequence[np.ndarray | None],
        out: Obs,
    ) -> list[bool]:
        """Reproduce every environment's state by replaying its actions.

        Args:
            seeded: each environment's `seeded_episode`.
            episodes: each one's current episode, which is the same if every episode is seeded.
            actions: each one's last `steps_to_replay` actions; None if they are unknown.
            out: ``[N, ...]``, receives the observations.

        Returns:
            For each environment, whether it was reproduced. If not (an episode ended unexpectedly,
            or there were no actions), the caller must `reset` it. The caller also has to compare
            the episode and the observation with the expected ones.
        """

    @abstractmethod
    def close(self) -> None:
        """Close every environment."""


def invalid_return(name: str, step: int, env: int, what: str) -> InvalidReturn:
    """Return the error for an environment that returned an invalid value.

    Args:
        step: the step of the trajectory; -1 means the reset.
        what: a phrase that describes the value.
    """
    where = f"at step {step} of the trajectory" if step >= 0 else "from reset"
    return InvalidReturn(
        f"environment {env} ({name}) returned {what} {where}; look at what it computes there."
    )
