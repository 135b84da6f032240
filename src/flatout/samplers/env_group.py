"""Env groups: environments that act together, as a sampler drives them."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flatout.spans import Work

if TYPE_CHECKING:
    from flatout.buffers.rollout import RolloutBuffer
    from flatout.envs.base import Ended, Envs
    from flatout.learner.policy import Policy
    from flatout.samplers.processes.env_group import WorkerEnvGroup


class EnvCounters(NamedTuple):
    """Each environment's counters, as `Envs` describes them."""

    episode: list[int]
    origin: list[int]
    since: list[int]


LostEnv = tuple[int, np.ndarray]
"""An environment that was lost with its process and began another episode: its number within the
group, and its last observation; the row now holds the new episode's first."""


class Call(NamedTuple):
    """A call of a policy that is not made yet; see `Policy.begin`."""

    policy: Policy
    obs: np.ndarray
    step: int
    first: int


class Turn(NamedTuple):
    """Groups that need actions, for observations ``[N, ...]`` of all environments."""

    groups: Sequence[ActingGroup]
    obs: np.ndarray
    step: int


class Chosen(NamedTuple):
    """What was chosen in a turn: each group's outputs, and the nanoseconds that it took."""

    outputs: list[list[Any]]
    spent: int


class InlineEnvGroup:
    """Environments ``first .. first + num_envs - 1`` of a run, which step in this process.

    They read and write rows of a trajectory's arrays: step t leads from row t to row t + 1.

    Args:
        envs: steps them.
        buffers: the trajectories' arrays by slot.
        first: the number of the first environment.

    Attributes:
        span: of the time that waiting for them takes.
    """

    span = "env"

    def __init__(self, envs: Envs, buffers: Sequence[RolloutBuffer], first: int = 0) -> None:
        self._envs = envs
        self.first, self.num_envs = first, envs.num_envs
        columns = slice(first, first + envs.num_envs)
        self._obs = [buffer.obs[:, columns] for buffer in buffers]
        self._rewards = [buffer.rewards[:, columns] for buffer in buffers]
        self.finished, self.close = envs.finished, envs.close

    @property
    def life_lost(self) -> np.ndarray | None:
        """See `Envs`; of the last step."""
        return self._envs.life_lost

    def reset_all(self) -> None:
        """Start an episode of each; observations go to row 0 of the first slot."""
        self._envs.reset_all(self._obs[0][0])

    def send(self, slot: int, t: int, actions: np.ndarray, active: Sequence[int] | None) -> None:
        """Begin step t of the trajectory in a slot; see `Envs.step` for `active`."""
        self._begun = (slot, t, actions, active)

    def receive(self, ended: Ended) -> list[LostEnv]:
        """Wait for the step that was begun.

        Args:
            ended: as for `Envs.step`, with numbers within the group.

        Returns:
            Environments that were lost. Nothing else of their step was written: they must act
            `again` from their new first observation, which lies in row t.

        Raises:
            EnvironmentFailure: an environment failed and will not be restarted.
        """
        slot, t, actions, active = self._begun
        self._envs.step(actions, self._obs[slot][t + 1], self._rewards[slot][t], ended, active)
        return []

    def again(self, actions: np.ndarray) -> None:
        """Begin the step once more for those that `receive` returned."""
        raise AssertionError("nothing is lost in this process")

    def work(self) -> dict[str, Work]:
        """What the processes that step them have done so far, by name."""
        return {}

    def counters(self) -> EnvCounters:
        """The counters now."""
        envs = self._envs
        return EnvCounters(list(envs.episode), list(envs.origin), list(envs.since))

    def reset(self, env: int, episode: int, slot: int = 0) -> None:
        """Start one episode; its observation goes to row 0 of a slot."""
        self._envs.reset(env, self._obs[slot][0], episode)

    def replay_all(
        self, origins: Sequence[int], actions: Sequence[np.ndarray | None]
    ) -> list[bool]:
        """See `Envs.replay_all`; observations go to row 0 of the first slot."""
        return self._envs.replay_all(origins, actions, self._obs[0][0])


class ActingGroup:
    """Environments that step together, and the policy that acts for them.

    Args:
        envs: the environments.
        policy: acts for them, in as many calls as its batch goes into their number.
        first: the number of the first environment in the run, from which noise is drawn, where
            `envs.first` is only its column in the arrays.

    Attributes:
        columns: of the environments in the arrays.
        calls: the columns and the first environment of each call of the policy.
        index: of the first call's outputs in the arrays.
        active: environments that play on in this trajectory, by their numbers within the group;
            None is all of them.
        left: episodes that each still plays in this trajectory.
        rows: steps of this trajectory that are done.
        stepping: a step was begun and not yet waited for.
    """

    def __init__(
        self, envs: InlineEnvGroup | WorkerEnvGroup, policy: Policy, first: int | None = None
    ) -> None:
        self.envs, self.policy = envs, policy
        self.first = envs.first if first is None else first
        self.columns = slice(envs.first, envs.first + envs.num_envs)
        size = policy.num_envs
        self.calls = [
            (slice(envs.first + at, envs.first + at + size), self.first + at)
            for at in range(0, envs.num_envs, size)
        ]
        self.index = 0
        self.begin(0)

    def act(self, obs: np.ndarray, step: int) -> list[Any]:
        """Begin to choose the actions for observations ``[N, ...]`` of all environments."""
        return [self.policy.begin(obs[columns], step, first) for columns, first in self.calls]

    def places(self, obs: np.ndarray, step: int) -> Iterator[tuple[int, Call]]:
        """The calls that `act` makes, and where their outputs lie among all groups'."""
        for place, (columns, first) in enumerate(self.calls, self.index):
            yield place, Call(self.policy, obs[columns], step, first)

    def write(self, outputs: Sequence[Any], buffer: RolloutBuffer, t: int) -> np.ndarray:
        """Wait for what `act` began, and write it to row t; returns the actions."""
        actions: list[np.ndarray] = []
        for index, output in enumerate(outputs, self.index):
            row = np.asarray(output)  # waits for the device
            buffer.outputs[index][t] = row
            actions.append(self.policy.layout.action(row))
        return actions[0] if len(actions) == 1 else np.concatenate(actions)

    def begin(self, episodes: int) -> None:
        """Begin a trajectory, of so many whole episodes (0: of a number of steps)."""
        self.active: list[int] | None = None
        self.left = [episodes] * self.envs.num_envs
        self.rows = 0
        self.stepping = False


def driven(turns: Generator[Turn, Chosen | None, Any]) -> Any:
    """What turns come to where each group's policy chooses its actions."""
    chosen, clock = None, time.perf_counter_ns
    try:
        while True:
            groups, obs, step = turns.send(chosen)
            begin = clock()
            chosen = Chosen([group.act(obs, step) for group in groups], clock() - begin)
    except StopIteration as end:
        return end.value
    finally:
        turns.close()
