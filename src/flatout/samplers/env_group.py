"""Env groups: environments that act together, wherever they step, as a sampler drives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from flatout.spans import Work
from flatout.types import Episode

if TYPE_CHECKING:
    from flatout.buffers.rollout import RolloutBuffer
    from flatout.envs.base import Ended, Envs
    from flatout.learner.policy import Policy


class EnvCounters(NamedTuple):
    """Each environment's counters, as `Envs` describes them."""

    episode: list[int]
    origin: list[int]
    since: list[int]


class LostEnv(NamedTuple):
    """An environment that was lost with its process and began another episode.

    Attributes:
        env: its number within the environments.
        obs: its last observation; the row now holds the new episode's first.
    """

    env: int
    obs: np.ndarray


class EnvGroup(Protocol):
    """Environments ``first .. first + num_envs - 1`` of a run.

    They read and write rows of a trajectory's arrays: step t leads from row t to row t + 1.

    Attributes:
        first: the number of the first of them.
        num_envs: how many they are.
        span: of the time that waiting for them takes.
        life_lost: ``[num_envs]``, see `Envs`; of the last step.
    """

    first: int
    num_envs: int
    span: str

    @property
    def life_lost(self) -> np.ndarray | None: ...

    def reset_all(self) -> None:
        """Start an episode of each; observations go to row 0 of the first slot."""
        ...

    def send(self, slot: int, t: int, actions: np.ndarray, active: Sequence[int] | None) -> None:
        """Begin step t of the trajectory in a slot.

        Args:
            slot: which trajectory's arrays.
            t: the step.
            actions: ``[num_envs, ...]``.
            active: those that play on, in increasing order; None is all.
        """
        ...

    def receive(self, ended: Ended) -> list[LostEnv]:
        """Wait for the step that was begun.

        Args:
            ended: as for `Envs.step`, with numbers within the environments.

        Returns:
            Environments that were lost. Nothing else of their step was written: they must `act`
            again from their new first observation, which lies in row t.

        Raises:
            EnvironmentFailure: an environment failed and will not be restarted.
        """
        ...

    def again(self, actions: np.ndarray) -> None:
        """Begin the step once more for those that `receive` returned."""
        ...

    def work(self) -> dict[str, Work]:
        """What the processes that step them have done so far, by name."""
        ...

    def finished(self, env: int) -> Episode:
        """The episode that just ended, with the environment's number in the run."""
        ...

    def counters(self) -> EnvCounters:
        """The counters now."""
        ...

    def reset(self, env: int, episode: int, slot: int = 0) -> None:
        """Start one episode; its observation goes to row 0 of a slot."""
        ...

    def replay_all(
        self, origins: Sequence[int], actions: Sequence[np.ndarray | None]
    ) -> list[bool]:
        """See `Envs.replay_all`; observations go to row 0 of the first slot."""
        ...

    def close(self) -> None:
        """Close the environments."""
        ...


class InlineEnvGroup:
    """Environments that step in this process.

    Args:
        envs: steps them.
        buffers: the trajectories' arrays by slot.
        first: the number of the first environment.
    """

    span = "env"

    def __init__(self, envs: Envs, buffers: Sequence[RolloutBuffer], first: int = 0) -> None:
        self._envs = envs
        self.first, self.num_envs = first, envs.num_envs
        self._rows = slice(first, first + envs.num_envs)
        self._obs = [buffer.obs[:, self._rows] for buffer in buffers]
        self._rewards = [buffer.rewards[:, self._rows] for buffer in buffers]
        self._begun: tuple[int, int, np.ndarray, Sequence[int] | None] | None = None

    @property
    def life_lost(self) -> np.ndarray | None:
        return self._envs.life_lost

    def reset_all(self) -> None:
        self._envs.reset_all(self._obs[0][0])

    def send(self, slot: int, t: int, actions: np.ndarray, active: Sequence[int] | None) -> None:
        self._begun = (slot, t, actions, active)

    def receive(self, ended: Ended) -> list[LostEnv]:
        assert self._begun is not None
        slot, t, actions, active = self._begun
        self._envs.step(actions, self._obs[slot][t + 1], self._rewards[slot][t], ended, active)
        return []

    def again(self, actions: np.ndarray) -> None:
        raise AssertionError("nothing is lost in this process")

    def work(self) -> dict[str, Work]:
        return {}

    def finished(self, env: int) -> Episode:
        return self._envs.finished(env)

    def counters(self) -> EnvCounters:
        envs = self._envs
        return EnvCounters(list(envs.episode), list(envs.origin), list(envs.since))

    def reset(self, env: int, episode: int, slot: int = 0) -> None:
        self._envs.reset(env, self._obs[slot][0], episode)

    def replay_all(
        self, origins: Sequence[int], actions: Sequence[np.ndarray | None]
    ) -> list[bool]:
        return self._envs.replay_all(origins, actions, self._obs[0][0])

    def close(self) -> None:
        self._envs.close()


class ActingGroup:
    """Environments whose actions are chosen in one call.

    Args:
        environments: the environments.
        policy: acts for them.
        first: the number of the first environment in the run, from which noise is drawn, where
            `envs.first` is only its column in the arrays.

    Attributes:
        columns: of the environments in the arrays.
        index: its place among the groups, in the order of their environments.
        active: environments that play on in this trajectory, by their numbers within the group;
            None is all of them.
        left: episodes that each still plays in this trajectory.
        rows: steps of this trajectory that are done.
        stepping: a step was begun and not yet waited for.
    """

    def __init__(self, envs: EnvGroup, policy: Policy, first: int | None = None) -> None:
        self.envs, self.policy = envs, policy
        self.first = envs.first if first is None else first
        self.columns = slice(envs.first, envs.first + envs.num_envs)
        self.index = 0
        self.begin(0)

    def begin(self, episodes: int) -> None:
        """Begin a trajectory, of so many whole episodes (0: of a number of steps)."""
        self.active: list[int] | None = None
        self.left = [episodes] * self.envs.num_envs
        self.rows = 0
        self.stepping = False
