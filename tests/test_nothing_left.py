"""A run that has reached what it was asked for says so at once; an agent says what it learned."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout import PPO, Agent
from tests import tiny
from tests.conftest import TINY, Result

Cli = Callable[..., Result]
pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture
def run(flatout: Cli, tmp_path: Path) -> Path:
    """A finished run of 256 steps."""
    path = tmp_path / "run"
    assert flatout("train", "ppo", *TINY, "--run-dir", path).code == 0
    return path


def tree(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("flags", [(), ("--steps", 256), ("--steps", 100), ("--placement", "cpu")])
def test_a_finished_run_is_not_begun_again(
    flatout: Cli, run: Path, flags: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It compiled for 25 s, and then said "VERDICT acting-bound, 0 steps/s"."""

    def assemble(*argv: Any, **more: Any) -> Any:
        raise AssertionError("nothing is to be compiled")

    monkeypatch.setattr("flatout.run.trainer.assemble", assemble)
    before = tree(run)
    result = flatout("train", "--resume", run, *flags, "--no-quiet")
    assert result.code == 0, result.err
    assert "has made all of its 256 steps" in result.out
    assert re.search(r"--steps 512\b", result.out)
    assert "VERDICT" not in result.out
    after = tree(run)
    assert {name for name in before if before[name] != after.get(name)} == set()
    as_json = flatout("train", "--resume", run, *flags, "--json")
    assert json.loads(as_json.out) == json.loads((run / "summary.json").read_text())


def test_a_run_that_reached_its_return_says_so(flatout: Cli, tmp_path: Path) -> None:
    run, goal = tmp_path / "run", ("--stop-at-return", 5)
    words = [word for word in TINY if word != "--quiet"]
    assert flatout("train", "ppo", *words, "--steps", 6400, *goal, "--run-dir", run).code == 0
    summary = json.loads((run / "summary.json").read_text())
    assert summary["ended"] == "return"
    result = flatout("train", "--resume", run)
    assert f"ended after {summary['steps']:,} steps, when it had reached" in result.out
    assert json.loads((run / "summary.json").read_text()) == summary
    steps = summary["steps"] + tiny.ITERATION
    assert flatout("train", "--resume", run, "--stop-at-return", 1e9, "--steps", steps).code == 0
    assert json.loads((run / "summary.json").read_text())["steps"] == steps


@pytest.mark.parametrize("keeps", [False, True])
def test_an_agent_that_reached_its_return_says_so(
    keeps: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where: dict[str, Any] = {"run_dir": tmp_path / "run"} if keeps else {}
    settings = tiny.python("ppo", seed=1, placement="cpu", stop_at_return=5)
    agent = PPO("CartPole-v1", **settings).learn(6400, **where)
    steps = agent.summary["steps"]
    assert steps < 6400
    assert "nothing is left" not in capsys.readouterr().err
    assert agent.learn(64, **where).summary["steps"] == steps
    said = capsys.readouterr().err
    assert said.count(f"after {steps:,} steps the run had reached stop_at_return 5;") == 1
    agent.learn(64, reset=True)
    assert agent.summary["steps"] == 64
    assert "nothing is left" not in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", '{"ended": "steps"}', '{"ended": "steps", "steps": "256"}',
                                  '{"ended": "steps", "steps": 256, "wall_s": []}'])  # fmt: skip
def test_a_damaged_summary_is_written_again(flatout: Cli, run: Path, text: str) -> None:
    (run / "summary.json").write_text(text)
    assert flatout("train", "--resume", run, "--no-quiet").code == 0
    assert json.loads((run / "summary.json").read_text())["steps"] == 256


def test_a_finished_population_is_not_begun_again(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*TINY[:-1], "--seeds", "2", "--strategy", "spread"]
    path = tmp_path / "population"
    assert flatout("train", "ppo", *words, "--run-dir", path).code == 0

    def choose(*argv: Any) -> Any:
        raise AssertionError("nothing is to be measured")

    monkeypatch.setattr("flatout.populations.strategy.choose", choose)
    result = flatout("train", "--resume", path, "--steps", 256)
    assert result.code == 0, result.err
    assert "all 2 members have made their 256 steps" in result.out
    assert "--steps 512" in result.out
    assert "seed=1" in result.out
    found = json.loads(flatout("train", "--resume", path, "--json").out)
    assert {one["steps"] for one in found.values()} == {256}


def test_a_loaded_agent_says_what_it_has_learned(run: Path, tmp_path: Path) -> None:
    """It said "nothing learned here"."""
    for path in (run, run / "params.safetensors"):
        assert repr(PPO.load(path)) == "<PPO on CartPole-v1: loaded, 256 steps>"
    again = PPO.load(run).save(tmp_path / "again")
    loaded = Agent.load(again)
    assert repr(loaded).endswith("CartPole-v1: loaded, 256 steps>")
    for name in ("params.safetensors", "best.safetensors"):  # a killed run has neither
        (run / name).unlink(missing_ok=True)
    assert repr(PPO.load(run)) == "<PPO on CartPole-v1: loaded, 256 steps>"
    agent = PPO("CartPole-v1", **tiny.python("ppo"))
    assert repr(agent) == "<PPO on CartPole-v1: nothing learned here>"
    assert repr(agent.learn(128)) == "<PPO on CartPole-v1: 128 steps>"
