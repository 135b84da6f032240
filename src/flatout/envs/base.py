"""What samplers and evaluators need of N environments, whatever steps them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from flatout.errors import EnvironmentFailure
from flatout.types import Episode

Ended = Callable[[int, bool, bool, np.ndarray], None]
"""``(env, terminated, truncated, final_obs)``; `final_obs` is overwritten right after the call."""


class Envs(Protocol):
    """N environments with one meaning of a step.

    An environment whose episode ends is reset within the same step, its final observation being
    handed over before. What an episode was is reproduced from its number and its actions.

    Attributes:
        num_envs: N.
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

    num_envs: int
    episode: list[int]
    returns: list[float]
    lengths: list[int]
    origin: list[int]
    since: list[int]
    life_lost: np.ndarray | None

    def reset(self, env: int, out: np.ndarray, episode: int | None = None) -> None:
        """Start an episode of one environment (by default the next) and write its observation."""
        ...

    def reset_all(self, out: np.ndarray, episode: int | None = None) -> None:
        """`reset` of every environment, together where that is faster."""
        ...

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
        ...

    def finished(self, env: int) -> Episode:
        """The episode that just ended, while `ended` is called."""
        ...

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
        ...

    def close(self) -> None:
        """Close every environment."""
        ...


def blamed(name: str, step: int, env: int, what: str) -> EnvironmentFailure:
    """The sentence for a value that no environment may return; step -1 is before the first."""
    where = f"at step {step} of the trajectory" if step >= 0 else "from reset"
    return EnvironmentFailure(
        f"environment {env} ({name}) returned {what} {where}; look at what it computes there."
    )
