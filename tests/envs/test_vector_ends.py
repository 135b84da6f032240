"""The ends of episodes in vector environments whose infos are nested, that write to the arrays
which they returned, or that declare their autoreset mode as text."""

from __future__ import annotations

from functools import partial
from threading import Lock
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics
from gymnasium.wrappers.vector import RecordEpisodeStatistics as RecordAll

from flatout import PPO, check_env
from flatout.config.schema import EnvConfig
from flatout.envs.task import open_task
from flatout.envs.vector import RARELY
from flatout.errors import UsageError
from tests.vector_envs import Countdowns


class Walk(gym.Env[Any, Any]):
    """Episodes of three steps with reward 1; the info of a step has its number and a dict."""

    observation_space = gym.spaces.Box(-9.0, 9.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.array([self.steps, 1], np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        info = {"steps": self.steps, "more": {"deep": {"steps": self.steps}}}
        return np.array([self.steps, 1], np.float32), 1.0, self.steps == 3, False, info


def recorded() -> gym.Env[Any, Any]:
    return RecordEpisodeStatistics(Walk())


def processes(num_envs: int, mode: AutoresetMode) -> Any:
    return AsyncVectorEnv([recorded] * num_envs, context="spawn", autoreset_mode=mode)


def around(num_envs: int, mode: AutoresetMode) -> Any:
    return RecordAll(SyncVectorEnv([Walk] * num_envs, autoreset_mode=mode))


class Odd(Countdowns):
    """Its infos at the end of an episode do not have Gymnasium's form, except the entry `good`."""

    def step(self, actions: Any) -> Any:
        *result, info = super().step(actions)
        sign = np.ones(self.num_envs, np.bool_)
        odd = {
            "good": [3.0] * self.num_envs, "_good": sign, "short": np.ones(1), "_short": sign,
            "number": 5.0, "_number": sign, "unsigned": np.ones(self.num_envs), "_unsigned": True,
            "ragged": [[1], 2, 3], "_ragged": sign, "table": [1.0] * self.num_envs,
            "_table": np.ones((self.num_envs, 2), np.bool_), 7: "seven", "none": None,
            "locks": np.array([Lock()] * self.num_envs), "_locks": sign,
        }  # fmt: skip
        within = self.mode == AutoresetMode.SAME_STEP
        return *result, {**info, "final_info": odd} if within else odd


class OldInfos(Countdowns):
    """The infos of ended episodes are an array of dicts, as in Gymnasium before version 1.0."""

    def step(self, actions: Any) -> Any:
        *result, info = super().step(actions)
        if "final_obs" in info:
            info["final_info"] = np.array([{"good": 3.0}] * self.num_envs, object)
        return *result, info


class Reused(Countdowns):
    """All calls return the same arrays, to which a reset writes zeros."""

    def __init__(
        self, num_envs: int = 3, mode: Any = "NextStep", together: int = 10**6, **given: Any
    ) -> None:
        super().__init__(num_envs, mode, together=together, **given)
        self.rewards, self.points = np.zeros(num_envs, np.float32), np.zeros(num_envs)
        self.flags = np.zeros((2, num_envs), np.bool_)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        for array in (self.rewards, self.points, self.flags):
            array.fill(0)
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        obs, self.rewards[:], self.flags[0], self.flags[1], _ = super().step(actions)
        self.points[:] = 7.0
        info = {"points": self.points, "_points": self.flags[0]}
        return obs, self.rewards, *self.flags, info


def episodes(source: Any, envs: int = 3, steps: int = 12) -> tuple[list[Any], list[Any]]:
    """Play with a task's environments; return the episodes, and the rewards of all steps."""
    opened = open_task(EnvConfig(env="walks", envs=envs), source).open(envs, 5, reseeding=RARELY)
    out, rewards = np.zeros((envs, 2), np.float32), np.zeros(envs)
    ended, gained = list[Any](), list[Any]()
    opened.reset_all(out)
    for _ in range(steps):
        opened.step(
            np.zeros(envs, np.int32), out, rewards,
            lambda env, *flags: ended.append((opened.finished(env), *flags[:2])),
        )  # fmt: skip
        gained.append(rewards.tolist())
    opened.close()
    return ended, gained


@pytest.mark.parametrize(
    ("make", "mode"),
    [
        *[(around, mode) for mode in AutoresetMode],
        (processes, AutoresetMode.NEXT_STEP),
        pytest.param(processes, AutoresetMode.SAME_STEP, marks=pytest.mark.slow),
        pytest.param(processes, AutoresetMode.DISABLED, marks=pytest.mark.slow),
    ],
)
def test_nested_infos_of_wrappers_are_ignored(make: Any, mode: AutoresetMode) -> None:
    """Numbers next to them are reported, as those of single environments."""
    ended, gained = episodes(lambda num_envs: make(num_envs, mode))
    assert [episode[:3] for episode, *_ in ended] == [(env, 3.0, 3) for env in [0, 1, 2] * 4]
    assert {tuple((episode.info or {}).items()) for episode, *_ in ended} == {(("steps", 3.0),)}
    assert gained == [[1.0] * 3] * 12


@pytest.mark.parametrize("mode", ["SameStep", "NextStep", "Disabled"])
def test_entries_of_infos_without_a_value_for_each_environment_are_ignored(mode: str) -> None:
    for together in (0, 10**6) if mode == "SameStep" else (10**6,):
        ended, _ = episodes(partial(Odd, mode=mode, together=together))
        assert ended
        assert all(episode.info == {"good": 3.0} for episode, *_ in ended)


def test_infos_in_the_form_of_older_versions_are_ignored() -> None:
    ended, _ = episodes(OldInfos)
    assert ended
    assert all(episode.info is None for episode, *_ in ended)


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_a_reset_of_all_environments_may_write_to_the_arrays_of_the_step(mode: str) -> None:
    """The ends, the rewards and the infos of the step before it are kept."""
    ended, gained = episodes(partial(Reused, mode=mode))
    assert [row[:3] for row, *_ in ended] == [(env, 1.0, 4) for env in [0, 1, 2] * 3]
    assert all(flags == [True, False] for _, *flags in ended)
    assert all(row.info == {"points": 7.0} for row, *_ in ended)
    assert gained == [[float(step % 4 == 3)] * 3 for step in range(12)]


def test_a_reset_of_waiting_environments_may_write_to_the_arrays_of_the_step() -> None:
    """The two others play on meanwhile, and a replay of their episodes ends as they did."""
    logs: list[Any] = []
    for kind in (Countdowns, Reused):
        make = partial(kind, mode="Disabled", masked=True, seeded=True, together=0)
        opened = open_task(EnvConfig(env="walks", envs=3), make).open(3, 5)
        out, rewards = np.zeros((3, 2), np.float32), np.zeros(3)
        log, actions = list[Any](), np.zeros(3, np.int32)

        def ended(env: int, *end: Any) -> None:
            log.append((opened.finished(env)[:3], *end[:2], end[2].tolist()))  # noqa: B023

        opened.reset_all(out)
        for _ in range(30):
            opened.step(actions, out, rewards, ended, [0, 2])
            log.append((out[[0, 2]].tolist(), rewards[[0, 2]].tolist(), opened.returns[::2]))
        numbers = list(opened.episode)
        steps = [np.zeros(opened.lengths[0], np.int32), None, np.zeros(9, np.int32)]
        log.append(opened.replay_all(numbers, numbers, steps, out))
        logs.append(log)
    assert logs[0] == logs[1]
    assert logs[0][-1] == [True, False, False], "the last one plays beyond the end of its episode"
    assert sum(len(entry) == 4 for entry in logs[0]) > 10


@pytest.mark.parametrize("text", ["SameStep", "SAME_STEP", "NextStep", "Disabled", "later"])
def test_a_mode_that_is_text_is_refused(text: str) -> None:
    """Gymnasium compares with the members of the Enum, which no text equals."""
    vector = Countdowns(masked=True, seeded=True)
    vector.metadata = {"autoreset_mode": text}
    name = {mode.value: mode.name for mode in AutoresetMode}.get(text, "SAME_STEP")
    words = rf"metadata\[\"autoreset_mode\"\] = '{text}', which is text: set it to "
    words += "NEXT_STEP, SAME_STEP or DISABLED of " if text == "later" else ""
    words += r"gymnasium\.vector\.AutoresetMode" + ("" if text == "later" else rf"\.{name}")
    with pytest.raises(UsageError, match=rf"{words}\.$") as caught:
        PPO(vector, n_steps=32, batch_size=32)
    assert "\n" not in str(caught.value)
    assert str(caught.value).removeprefix("Countdowns(...)") in str(check_env(vector)[0])
