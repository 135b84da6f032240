"""Environments that mask their actions are refused; they are trained if the user asks for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from flatout import PPO, UsageError
from tests import tiny
from tests.bad_envs import VECTOR, Good
from tests.conftest import Result

ROOT = Path(__file__).parents[2]
MASK = np.ones(2, np.int8)


class Method(Good):
    """An environment with a method `action_masks`, as sb3-contrib expects."""

    def action_masks(self) -> np.ndarray:
        return MASK


class Inner(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper with a method `action_masks`."""

    def action_masks(self) -> np.ndarray:
        return MASK


def wrapped(**kwargs: Any) -> gym.Env[Any, Any]:
    """Make an environment whose inner wrapper has the method and whose outer one has not."""
    return gym.wrappers.TimeLimit(Inner(Good(**kwargs)), 10)


class InInfo(Good):
    """An environment with a mask in the info of `call`, under the name `key`."""

    def __init__(self, call: str = "reset", key: str = "action_mask", **settings: Any) -> None:
        super().__init__(**settings)
        self.call, self.key = call, key

    def info(self, call: str) -> dict[str, Any]:
        return {self.key: MASK} if call == self.call else {"lives": 3}

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**kwargs)[0], self.info("reset")

    def step(self, action: Any) -> Any:
        return (*super().step(action)[:4], self.info("step"))


class Observed(Good):
    """An environment with a mask in its Dict observation, as in PettingZoo and RLlib."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        mask = spaces.Box(0, 1, (2,), np.int8)
        self.observation_space = spaces.Dict({"observation": VECTOR, "action_mask": mask})

    def observe(self, action: float) -> Any:
        return {"observation": super().observe(action), "action_mask": MASK}


class Stacked(Observed):
    """An environment whose Dict observation holds another entry, too."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        assert isinstance(self.observation_space, spaces.Dict)
        self.observation_space["goal"] = VECTOR

    def observe(self, action: float) -> Any:
        return super().observe(action) | {"goal": np.zeros(4, np.float32)}


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Method.action_masks()": (Method, {}),
    "Inner.action_masks()": (wrapped, {}),
    "info['action_mask'] of reset": (InInfo, {}),
    "info['action_masks'] of reset": (InInfo, {"key": "action_masks"}),
    "info['action_mask'] of step": (InInfo, {"call": "step"}),
    "info['action_masks'] of step": (InInfo, {"call": "step", "key": "action_masks"}),
    "observation['action_mask']": (Observed, {}),
}


@pytest.mark.parametrize("where", KINDS)
def test_masks_are_refused_by_name(where: str) -> None:
    env, kwargs = KINDS[where]
    with pytest.raises(UsageError, match="masks its actions") as refused:
        PPO(env, env_kwargs=kwargs, **tiny.python("ppo")).learn(64)
    assert where in str(refused.value)
    assert "--ignore-action-masks" in str(refused.value)


PLAIN = ("Method.action_masks()", "observation['action_mask']")


@pytest.mark.parametrize(
    "where",
    [pytest.param(where, marks=() if where in PLAIN else pytest.mark.slow) for where in KINDS],
)
def test_masks_are_ignored_if_asked(where: str) -> None:
    env, kwargs = KINDS[where]
    settings = tiny.python("ppo", env_kwargs=kwargs)
    agent = PPO(env, ignore_action_masks=True, **settings).learn(64)
    assert agent.summary["steps"] == 64
    assert len(agent.evaluate(2).returns) == 2


def test_a_dict_of_several_observations_keeps_them_without_its_mask() -> None:
    with pytest.raises(UsageError, match="masks its actions"):
        PPO(Stacked).learn(64)
    agent = PPO(Stacked, ignore_action_masks=True, **tiny.python("ppo")).learn(64)
    assert isinstance(agent.task.obs_spec, dict)
    assert list(agent.task.obs_spec) == ["goal", "observation"]


NAMED = tiny.flags("ppo", env="tests.envs.test_masks:InInfo")
TRAIN = ("train", "ppo", *NAMED, "--steps", 128, "--quiet")
WORKER = ("--placement", "sampler=processes workers=1x2")


def test_the_flag_is_part_of_a_run(
    flatout: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    run = tmp_path / "run"
    refused = flatout(*TRAIN, "--run-dir", tmp_path / "refused")
    assert refused.code == 2
    assert "tests.envs.test_masks:InInfo masks its actions" in refused.message
    assert flatout(*TRAIN, "--run-dir", run, "--ignore-action-masks").code == 0
    changed = flatout("train", "--resume", run, "--no-ignore-action-masks", "--steps", 192)
    assert changed.code == 2
    assert "ignore_action_masks" in changed.message
    assert flatout("train", "--resume", run, "--steps", 192, "--quiet").code == 0
    assert flatout("eval", run, "--episodes", "1", "--video", tmp_path / "seen.gif").code == 0


def test_actor_processes_refuse_at_once(
    flatout: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    refused = flatout(*TRAIN, *WORKER, "--run-dir", tmp_path / "refused")
    assert refused.code == 2
    assert "masks its actions" in refused.message
    assert "restart" not in refused.err  # a restarted worker would be refused again


@pytest.mark.slow
def test_actor_processes_ignore_masks_if_asked(
    flatout: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    flags = (*WORKER, "--ignore-action-masks", "--run-dir", tmp_path / "run")
    trained = flatout(*TRAIN, *flags)
    assert trained.code == 0, trained.err
