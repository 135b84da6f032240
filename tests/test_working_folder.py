"""An environment that changes the working folder changes nothing about where things are written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout import PPO
from tests import tiny
from tests.bad_envs import Good
from tests.conftest import TINY, Result, share_programs

Cli = Callable[..., Result]
ROOT = str(Path(__file__).parents[1])


class Leaves(Good):
    """Changes the working folder in every call."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        os.chdir("/")

    def reset(self, **settings: Any) -> Any:
        os.chdir("/")
        return super().reset(**settings)

    def step(self, action: Any) -> Any:
        os.chdir("/")
        return super().step(action)


NAMED = ("--env", "tests.test_working_folder:Leaves")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Go to the test's folder; relative paths of the next command begin there."""
    monkeypatch.syspath_prepend(ROOT)
    share_programs(monkeypatch, lambda config, code: tiny.programs("bad_envs"))

    def go() -> None:
        monkeypatch.chdir(tmp_path)

    go()
    return go


def test_every_command_writes_where_it_was_started(
    flatout: Cli, here: Callable[[], None], tmp_path: Path
) -> None:
    def run(*words: object) -> Result:
        here()
        done = flatout(*words)
        assert done.code == 0, done.err
        assert os.getcwd() == "/"
        return done

    run("train", "ppo", *TINY, *NAMED, "--run-dir", "a", "--json")
    run("train", "--resume", "a", "--steps", 320, "--quiet")
    run("train", "ppo", *NAMED, "--from", "a", "--run-dir", "b", "--quiet", "--steps", 384)
    run("eval", "a", "--episodes", 1, "--out", "video.gif")
    run("eval", "a", "--episodes", 1, "--checkpoint", "newest", "--out", "watched.gif")
    run("export", "a", "--out", "policy.py")
    assert {"a", "b", "video.gif", "watched.gif", "policy.py"} <= {*os.listdir(tmp_path)}
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["steps"] == 320


def test_messages_name_folders_as_the_user_did(flatout: Cli, here: Callable[[], None]) -> None:
    done = flatout("train", "ppo", *TINY, *NAMED, "--run-dir", "a", "--json")
    assert json.loads(done.out)["run_dir"] == "a"
    here()
    refused = flatout("train", "ppo", *TINY, *NAMED, "--run-dir", "a")
    assert refused.message.startswith("a already holds a run")


def test_an_agent_writes_where_it_was_asked_to(here: Callable[[], None], tmp_path: Path) -> None:
    agent = PPO(Leaves, **tiny.python("ppo")).learn(64, run_dir="run")
    here()
    agent.record("video.gif")
    here()
    agent.export("policy.py")
    assert {"run", "video.gif", "policy.py"} == {*os.listdir(tmp_path)}
    here()
    again = PPO.load("run", env=Leaves)
    agent = again.learn(64, run_dir=tmp_path / "run")
    assert agent.summary["steps"] == 128
