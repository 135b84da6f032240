"""What a run leaves for people: its curve, and its model card with a command that works."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from flatout import PPO
from flatout.cli import arguments
from flatout.cli.changed_command import given_in_python, repeatable
from flatout.config import settings
from flatout.config.schema import TrainConfig
from flatout.config.settings import build, resolve
from flatout.run.card import OURS, SILENT, card, command
from flatout.types import NAMED
from tests import tiny
from tests.conftest import TINY, Result
from tests.tiny import train_config

pytestmark = pytest.mark.usefixtures("shared_programs")

Cli = Callable[..., Result]


def test_every_run_leaves_a_curve_and_a_card(flatout: Cli, tmp_path: Path) -> None:
    words = ("--learning-rate", "lin_0.01", "--env-kwargs", "max_episode_steps=20",
             "--eval-every", 128, "--eval-episodes", 2)  # fmt: skip
    assert flatout("train", "ppo", *TINY, *words, "--run-dir", tmp_path / "a").code == 0
    root = ElementTree.fromstring((tmp_path / "a" / "curve.svg").read_text())
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 1
    card = (tmp_path / "a" / "README.md").read_text()
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert "interval" not in card, "the episodes of one run depend on each other"
    assert "return_interval" not in summary
    for part in (
        "# ppo on CartPole-v1", "![learning curve](curve.svg)",
        f"{summary['return_mean_last']:,.1f} (the mean",
        "| learning_rate | lin\\_0.01 |", summary["verdict"], f"{summary['best_eval_return']:,.1f}",
    ):  # fmt: skip
        assert part in card
    assert "gae_lambda" not in card, "a default"
    again = next(line for line in card.splitlines() if line.startswith("    flatout train"))
    assert repeatable(tmp_path / "a")
    assert not given_in_python(tmp_path / "a")
    result = flatout(*shlex.split(again)[1:], "--run-dir", tmp_path / "b", "--json", "--quiet")
    assert result.code == 0, result.err
    repeated = json.loads(result.out)
    for name in ("steps", "return_mean_last", "last", "best_eval_return"):
        assert repeated[name] == summary[name], "the command makes the same run again"


def test_a_run_builds_its_settings_once(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def counted(algorithm: str, *layers: Any) -> TrainConfig:
        built.append(algorithm)
        return build(algorithm, *layers)

    for module in (arguments, settings):
        monkeypatch.setattr(module, "build", counted)
    assert flatout("train", "ppo", *TINY, "--run-dir", tmp_path).code == 0
    assert built == ["ppo"], "the report and the card at its end included"


@pytest.mark.parametrize(
    ("algorithm", "given"),
    [
        ("ppo", {"hidden": [32], "max_grad_norm": None, "normalize_advantage": False}),
        ("ppo", {"placement": "workers=2x4 sampler=processes", "threshold": [1.0, 2.5]}),
        ("sac", {"ent_coef": "auto_0.1", "activation": "tanh", "checkpoint_every": 0}),
        ("dqn", {"env_kwargs": {"name": "it's", "flag": True, "n": 3, "x": [1.5, 2.0]}}),
        ("dqn", {"env_kwargs": {"x": {"a": [{"b": True}, 2], "c d": "é\U0001f600\x7f"}, "y": {}}}),
        ("dqn", {"double": True, "frame_stack": 2, "stop_at_return": -3.5, "tensorboard": False}),
        ("classify", {"size": "large", "batch_size": 64, "shards": 2}),
        ("tests.own_algorithms:make", {"hp": {"lr": 0.5, "size": 3}}),
    ],
)
def test_the_command_says_the_settings(algorithm: str, given: dict[str, Any]) -> None:
    env = {} if algorithm == "classify" else {"env": "CartPole-v1"}
    config = resolve(algorithm, env | given)
    words = shlex.split(command(config, config.run.placement))
    read, resumed = train_config(words[2:])
    assert not resumed
    kept = SILENT - {"env", "placement"}
    one, other = (
        {n: v for n, v in c.flat().items() if n not in kept} for c in (config, read)
    )  # fmt: skip
    assert one == other


def test_arguments_that_no_flag_can_say_are_shown_in_python() -> None:
    config = resolve("ppo", {"env": "CartPole-v1", "env_kwargs": {"x": [{"limit": None}]}})
    summary = {
        "env": "CartPole-v1", "return_mean_last": None, "best_eval_return": None, "steps": 1,
        "updates": 1, "ended": "steps", "steps_per_s": 1.0, "wall_s": 1.0, "placement": "cpu",
        "verdict": "", "headline": "", "versions": {},
    }  # fmt: skip
    text = card(config, summary, False, NAMED)
    assert "flatout train" not in text
    assert '"limit": null' in text


def test_a_classifiers_card_says_accuracies() -> None:
    summary = {
        "env": "digits", "return_mean_last": None, "test_accuracy": 0.5, "best_eval_return": 0.75,
        "steps": 1, "updates": 1, "ended": "steps", "steps_per_s": 1.0, "wall_s": 1.0,
        "placement": "cpu", "verdict": "", "headline": "", "versions": {},
    }  # fmt: skip
    text = card(config := resolve("classify", {}), summary, False, NAMED)
    assert "| best evaluation | test accuracy 75.00% |" in text
    assert "greedy" not in text
    assert "| result | test accuracy 50.00% |" in text
    assert "episode" not in card(config, summary | {"test_accuracy": None}, False, NAMED)


def test_a_card_is_not_written_over_what_a_user_wrote(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "README.md").write_text("my notes\n")
    agent = PPO("CartPole-v1", **tiny.python("ppo"))
    agent.learn(128, run_dir=run)
    assert (run / "README.md").read_text() == "my notes\n"
    assert (run / "curve.svg").exists()


@pytest.mark.fault
def test_a_picture_that_cannot_be_written_harms_no_run(flatout: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"

    def block(progress: Any, metrics: Any) -> None:
        for name in ("curve.svg", "README.md"):  # in the place of each
            (run / name).mkdir(exist_ok=True)

    agent = PPO("CartPole-v1", **tiny.python("ppo")).learn(128, run_dir=run, callback=block)
    assert agent.summary["ended"] == "steps"
    assert (run / "curve.svg").is_dir()
    assert (run / "README.md").is_dir()
    assert flatout("eval", run, "--episodes", 1).code == 0


def test_code_given_in_python_is_not_a_command(tmp_path: Path) -> None:
    import gymnasium as gym

    def make() -> gym.Env[Any, Any]:
        return gym.make("CartPole-v1")

    PPO(make, **tiny.python("ppo")).learn(128, run_dir=tmp_path / "run")
    card = (tmp_path / "run" / "README.md").read_text()
    assert card.startswith(OURS)
    assert "flatout train" not in card
    assert "given in Python" in card
    assert not repeatable(tmp_path / "run")
    assert given_in_python(tmp_path / "run")
