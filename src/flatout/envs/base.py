"""What samplers and evaluators need of N environments, whatever steps them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from flatout.errors import InvalidReturn
from flatout.types import Episode

Ended = Callable[[int, bool, bool, np.ndarray], None]
"""``(env, terminated, truncated, final_obs)``; `final_obs` is overwritten right after the call."""


TRAINING, EVALUATION = 0, 1
"""Streams of episode seeds, so that evaluation never repeats a training episode."""


def episode_seed(seed: int, stream: int, env: int, episode: int) -> int:
    """The seed (31 bits, as every environment accepts) of one episode."""
    sequence = np.random.SeedSequence(seed, spawn_key=(stream, env, episode))
    return int(sequence.generate_state(1)[0]) >> 1


class Envs(ABC):
    """N environments with one meaning of a step.

    An environment whose episode ends is reset within the same step, its final observation being
    handed over before. What an episode was is reproduced from its number and its actions.

    Args:
        num_envs: N.
        name: for messages.
        seed: the run's seed.
        stream: `TRAINING` or `EVALUATION`.
        first: the first environment's number in the run, for seeds and messages.

    Attributes:
        episode: the number of each environment's current episode, -1 before the first.
        returns: undiscounted raw return of each current episode.
        lengths: steps of each current episode.
        origin: the episode at whose start each environment was last seeded; `replay_all` begins
            there. Where every episode is seeded, that is `episode`.
        since: steps since that start, the actions that `replay_all` wants. Where every episode is
            seeded, that is `lengths`.
        life_lost: ``[N]`` bool, environments that lost a life in the last step without the episode
            ending, valid until the next step; None for environments without lives.
    """

    def __init__(self, num_envs: int, name: str, seed: int, stream: int, first: int) -> None:
        self._name, self._seed, self._stream, self._first = name, seed, stream, first
        self.num_envs = num_envs
        self.episode = [-1] * num_envs
        self.returns = [0.0] * num_envs
        self.lengths = [0] * num_envs
        self.origin, self.since = self.episode, self.lengths
        self.life_lost: np.ndarray | None = None

    def finished(self, env: int) -> Episode:
        """The episode that just ended, while `ended` is called."""
        return Episode(self._first + env, self.returns[env], self.lengths[env])

    def _seed_of(self, env: int, number: int) -> int:
        return episode_seed(self._seed, self._stream, self._first + env, number)

    def _which(self, env: int) -> str:
        return f"environment {self._first + env} ({self._name})"

    @abstractmethod
    def reset(self, env: int, out: np.ndarray, episode: int | None = None) -> None:
        """Start an episode of one environment (by default the next) and write its observation."""

    @abstractmethod
    def reset_all(self, out: np.ndarray, episode: int | None = None) -> None:
        """`reset` of every environment, together where that is faster."""

    @abstractmethod
    def step(
        self,
        actions: np.ndarray,
        out: np.ndarray,
        rewards: np.ndarray,
        ended: Ended,
        active: Sequence[int] | None = None,
    ) -> None:
        """One step of every environment (or of the `active` ones; the rest keep their state).

        Args:
            actions: ``[N, ...]`` as `act` chose them.
            out: ``[N, ...]``, receives observations: after an episode's end the next one's first.
            rewards: ``[N]``, receives rewards.
            ended: called where an episode ended, before the reset.
            active: environments that play on, in increasing order.

        Raises:
            EnvironmentFailure: an environment raised, or returned what is no observation.
        """

    @abstractmethod
    def replay_all(
        self, episodes: Sequence[int], actions: Sequence[np.ndarray | None], out: np.ndarray
    ) -> list[bool]:
        """Reproduce every environment's state.

        Args:
            episodes: each environment's `origin`.
            actions: each one's ``[since, ...]`` actions since then, or None.
            out: ``[N, ...]``, receives observations.

        Returns:
            For each environment whether it was reproduced; where it was not (an episode ended
            that should not have, or no actions were given), it must be `reset`. That the
            observation is the expected one is for the caller to check.
        """

    @abstractmethod
    def close(self) -> None:
        """Close every environment."""


def blamed(name: str, step: int, env: int, what: str) -> InvalidReturn:
    """The sentence for a value that no environment may return; step -1 is before the first."""
    where = f"at step {step} of the trajectory" if step >= 0 else "from reset"
    return InvalidReturn(
        f"environment {env} ({name}) returned {what} {where}; look at what it computes there."
    )
