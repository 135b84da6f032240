"""Env groups: environments that step together. `CentralSampler` drives them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flatout import tree
from flatout.spans import Work
from flatout.storage.span_records import MAIN
from flatout.types import Episode, Obs

if TYPE_CHECKING:
    from flatout.engine.act import Policy
    from flatout.engine.rollout_buffer import RolloutBuffer
    from flatout.envs.base import Ended, Envs


class EnvCounters(NamedTuple):
    """The counters of each environment of a group; see `Envs`."""

    episode: list[int]
    seeded_episode: list[int]
    steps_to_replay: list[int]


LostEnv = tuple[int, Obs]
"""An environment that was lost with its process and has begun another episode: its number within
the group, and its last observation. The row now holds the new episode's first observation."""


class EnvGroup(ABC):
    """Environments ``first .. first + num_envs - 1`` of a run, which step together.

    They read and write rows of a trajectory's arrays: step t leads from row t to row t + 1. Several
    trajectories may be in use at the same time, each in a slot.

    Attributes:
        span: the name of the span that measures the wait for their steps.
        life_lost: which environments lost a life in the last step; see `Envs`.
    """

    span: str
    first: int
    num_envs: int
    life_lost: np.ndarray | None

    @abstractmethod
    def reset_all(self) -> None:
        """Start an episode of each environment; observations go to row 0 of the first slot."""

    @abstractmethod
    def send(self, slot: int, t: int, actions: np.ndarray, active: Sequence[int] | None) -> None:
        """Begin step t of the trajectory in a slot; see `Envs.step` for `actions` and `active`."""

    @abstractmethod
    def receive(self, ended: Ended) -> list[LostEnv]:
        """Wait for the step that was begun.

        Args:
            ended: as for `Envs.step`, with numbers within the group.

        Returns:
            The environments that were lost. Their step wrote nothing. The caller must choose
            actions for their new first observations, which are in row t, and call `repeat_step`.

        Raises:
            EnvironmentFailure: an environment failed and will not be restarted.
        """

    def repeat_step(self, actions: np.ndarray) -> None:
        """Repeat the step of the environments that `receive` returned."""
        raise AssertionError("environments of this process cannot be lost")

    def work(self) -> dict[str, Work]:
        """Return the work so far of the processes that step them, by name."""
        return {}

    @abstractmethod
    def finished(self, env: int) -> Episode:
        """See `Envs.finished`."""

    @abstractmethod
    def counters(self) -> EnvCounters:
        """Return the current counters."""

    @abstractmethod
    def reset(self, env: int, episode: int, slot: int = 0) -> None:
        """Start an episode of one environment; its observation goes to row 0 of a slot."""

    @abstractmethod
    def replay_all(
        self,
        seeded: Sequence[int],
        episodes: Sequence[int],
        actions: Sequence[np.ndarray | None],
    ) -> list[bool]:
        """See `Envs.replay_all`; observations go to row 0 of the first slot."""

    @abstractmethod
    def close(self) -> None:
        """Close every environment."""


class InlineEnvGroup(EnvGroup):
    """A group of environments that steps in this process.

    Args:
        envs: the environments.
        buffers: the trajectories' arrays, by slot.
        first: the number of the first environment.
    """

    span = "env"

    def __init__(self, envs: Envs, buffers: Sequence[RolloutBuffer], first: int = 0) -> None:
        self._envs = envs
        self.first, self.num_envs = first, envs.num_envs
        columns = slice(first, first + envs.num_envs)
        self._obs = [tree.take(buffer.obs, (slice(None), columns)) for buffer in buffers]
        self._rewards = [buffer.rewards[:, columns] for buffer in buffers]

    @property
    def life_lost(self) -> np.ndarray | None:  # type: ignore[override]
        return self._envs.life_lost

    def reset_all(self) -> None:
        self._envs.reset_all(tree.take(self._obs[0], 0))

    def send(self, slot: int, t: int, actions: np.ndarray, active: Sequence[int] | None) -> None:
        self._begun = (slot, t, actions, active)

    def receive(self, ended: Ended) -> list[LostEnv]:
        slot, t, actions, active = self._begun
        out = tree.take(self._obs[slot], t + 1)
        self._envs.step(actions, out, self._rewards[slot][t], ended, active)
        return []

    def work(self) -> dict[str, Work]:
        envs = self._envs
        return {MAIN: Work(resets=envs.reset_times, spares=envs.spares, spare_mb=envs.spare_mb)}

    def finished(self, env: int) -> Episode:
        return self._envs.finished(env)

    def counters(self) -> EnvCounters:
        envs = self._envs
        return EnvCounters(
            list(envs.episode), list(envs.seeded_episode), list(envs.steps_to_replay)
        )

    def reset(self, env: int, episode: int, slot: int = 0) -> None:
        self._envs.reset(env, tree.take(self._obs[slot], 0), episode)

    def replay_all(
        self,
        seeded: Sequence[int],
        episodes: Sequence[int],
        actions: Sequence[np.ndarray | None],
    ) -> list[bool]:
        return self._envs.replay_all(seeded, episodes, actions, tree.take(self._obs[0], 0))

    def close(self) -> None:
        self._envs.close()


NEVER = -2
"""The number of a step on which no other follows."""


class ActingGroup:
    """Environments that step together, and the policy that acts for them.

    Args:
        envs: the environments.
        policy: acts for them. Its batch divides their number; each batch is one call.
        first: the number of the first environment in the run, which selects its noise. Given in
            actor processes, where `envs.first` is only its column in the arrays.

    Attributes:
        columns: the environments' columns in the arrays.
        calls: the columns and the first environment's number of each call of the policy.
        index: the index of the first call's outputs in `RolloutBuffer.outputs`.
        active: the environments that still play in this trajectory, by their numbers within the
            group; None for all of them.
        left: the number of episodes that each environment still plays in this trajectory.
        begun: ``[n]`` bool, the environments whose carry is the initial one in the next step: their
            episodes begin, or they lost a life that counts as a terminal step.
        first_carry: the carries before this trajectory's first step, one for each call of a
            recurrent policy.
        rows: the number of steps of this trajectory that are done.
        stepping: whether a step has begun whose results were not received yet.
    """

    def __init__(self, envs: EnvGroup, policy: Policy, first: int | None = None) -> None:
        self.envs, self.policy = envs, policy
        self.first = envs.first if first is None else first
        self.columns = slice(envs.first, envs.first + envs.num_envs)
        size = policy.num_envs
        self.calls = [
            (slice(envs.first + at, envs.first + at + size), self.first + at)
            for at in range(0, envs.num_envs, size)
        ]
        self.index = 0
        self.begun = self._begun_before = np.ones(envs.num_envs, np.bool_)
        self._acted = NEVER  # the number of the newest step for which the policy acted
        self.begin(0)

    def act(self, buffer: RolloutBuffer, t: int, step: int) -> list[Any]:
        """Begin to choose the group's actions from the observations of row t."""
        follows, self._acted = self._acted == step - 1, step
        recurrent = self.policy.recurrent
        if recurrent and not self.rows:  # also if the first step is repeated
            self.first_carry = self.carry()
        chosen: list[Any] = []
        for columns, first in self.calls:
            more: dict[str, Any] = {}
            if recurrent:
                more["begun"] = self.begun[self._within(columns)].copy()
            if buffer.age is not None:
                more |= {"age": buffer.age[t, columns], "follows": follows}
            chosen.append(self.policy.begin(buffer.frames(t, columns), step, first, **more))
        if not recurrent:
            return chosen
        self._begun_before, self.begun = self.begun, np.zeros_like(self.begun)
        if self.active is not None:  # idle environments wait for the start of an episode
            self.begun[:] = True
            self.begun[self.active] = False
        return chosen

    def act_again(
        self, buffer: RolloutBuffer, t: int, step: int, restarted: Sequence[int]
    ) -> list[Any]:
        """Choose the actions of a step that is repeated, because the environments `restarted` of
        this group have begun another episode."""
        if self.policy.recurrent:
            for _, first in self.calls:
                self.policy.undo(first)
            self.begun = self._begun_before
            self.begun[list(restarted)] = True
        return self.act(buffer, t, step)

    def forget(self) -> None:
        """Let the next observations not follow on those of the last step."""
        self._acted = NEVER

    def carry(self) -> list[Any]:
        """Return the carries before the next step, one for each call of a recurrent policy."""
        if not self.policy.recurrent:
            return []
        return [
            self.policy.carry(first, self.begun[self._within(columns)])
            for columns, first in self.calls
        ]

    def set_carry(self, carries: Sequence[Any]) -> None:
        """Set the carries to those that `carry` returned."""
        for (_, first), carry in zip(self.calls, carries, strict=True):
            self.policy.set_carry(carry, first)
        self.begun = np.zeros_like(self.begun)

    def _within(self, columns: slice) -> slice:
        """Return the columns of a call within this group."""
        start = columns.start - self.envs.first
        return slice(start, start + self.policy.num_envs)

    def write(self, outputs: Sequence[Any], buffer: RolloutBuffer, t: int) -> np.ndarray:
        """Wait for the outputs of `act`, write them to row t, and return the actions."""
        actions: list[np.ndarray] = []
        for index, output in enumerate(outputs, self.index):
            row = np.asarray(output)  # waits for the device
            buffer.outputs[index][t] = row
            actions.append(self.policy.layout.action(row))
        return actions[0] if len(actions) == 1 else np.concatenate(actions)

    def begin(self, episodes: int) -> None:
        """Begin a trajectory of `episodes` whole episodes per environment; 0 for T steps."""
        self.active: list[int] | None = None
        self.left = [episodes] * self.envs.num_envs
        self.rows = 0
        self.stepping = False
        self.first_carry: list[Any] = []
