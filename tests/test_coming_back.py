"""Tests of loading agents whose environments were classes, functions or objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from flatout import PPO, UsageError
from tests import tiny
from tests.conftest import Result
from tests.tiny_envs import Bandit, NeedsOSMesa

pytestmark = pytest.mark.usefixtures("shared_programs")

Cli = Callable[..., Result]

ON: dict[str, Any] = {"seed": 1, "placement": "cpu", "tensorboard": False} | tiny.python("ppo")


def test_environments_that_are_classes_are_loaded_by_name(tmp_path: Path) -> None:
    agent = PPO(Bandit, **ON).learn(64)
    assert agent.config.env.env == "tests.tiny_envs:Bandit"
    file = agent.save(tmp_path / "agent")
    loaded = PPO.load(file)
    assert loaded.evaluate(4) == agent.evaluate(4)
    assert loaded.learn(64).summary["steps"] == 64


@pytest.mark.parametrize(
    ("env", "name"),
    [
        pytest.param(lambda: Bandit(), "<lambda>", marks=pytest.mark.slow),
        pytest.param(Bandit(), "Bandit", marks=pytest.mark.slow),
        (gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda r: r / 2), "CartPole-v1"),
        pytest.param(
            gym.make("CartPole-v1", max_episode_steps=9), "CartPole-v1", marks=pytest.mark.slow
        ),
    ],
    ids=["lambda", "object", "wrapped", "limited"],
)
def test_environments_without_a_name_must_be_passed_again(
    env: Any, name: str, tmp_path: Path, flatout: Cli
) -> None:
    file = PPO(env, **ON | tiny.ONE).learn(64).save(tmp_path / "agent")
    with pytest.raises(UsageError, match=r"pass env=") as raised:
        PPO.load(file)
    assert name in str(raised.value)
    assert PPO.load(file, env).learn(64).summary["steps"] == 64
    for command in (("eval", file), ("export", file, "--out", tmp_path / "policy.py")):
        shown = flatout(*command)
        assert (shown.code, "env=" in shown.message) == (2, False)
        assert "--env module:factory. It was passed as a Python object" in shown.message


def test_an_unchanged_environment_object_is_loaded_by_its_id(tmp_path: Path) -> None:
    agent = PPO(gym.make("CartPole-v1"), **ON | tiny.ONE).learn(64)
    assert agent.config.env.env == "CartPole-v1"
    PPO.load(agent.save(tmp_path / "agent"), envs=2)


def test_a_missing_rendering_library_names_its_variable(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message does not advise another environment (`env=`), which would not help."""
    run = tmp_path / "run"
    monkeypatch.setenv("MUJOCO_GL", "egl")
    PPO(NeedsOSMesa, **ON).learn(64, run_dir=run)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with pytest.raises(UsageError) as raised:
        PPO.load(run)
    resumed = flatout("train", "--resume", run, "--steps", 128, "--quiet")
    for message in (str(raised.value), resumed.message):
        assert message.startswith("tests.tiny_envs:NeedsOSMesa cannot be used with ")
        assert message.endswith("or set MUJOCO_GL=egl.")
        assert "env=" not in message
