"""``train ... --run-dir DIR --continue``: a run with equal settings is resumed, or started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout import PPO
from flatout.__main__ import main
from flatout.cli.continuing import continued
from flatout.errors import UsageError
from flatout.storage.run_folder import RunFolder
from flatout_explain.files import locks
from tests import tiny
from tests.cli.test_bad_input import sentence
from tests.conftest import Result
from tests.tiny import train_config

Cli = Callable[..., Result]
COMMAND = ("train", "ppo", *tiny.flags("ppo"), "--no-tensorboard", "--quiet")


def asked(path: Path, *flags: str) -> Any:
    """The settings of a command."""
    return train_config(tiny.latest([*COMMAND[1:], "--run-dir", str(path), *flags]))[0]


def saved(path: Path, *flags: str, placement: str = "act=cpu learn=cpu") -> None:
    """A folder with the settings of a run."""
    folder = RunFolder(path)
    folder.write_config(asked(path, *flags, "--placement", placement), placement)
    folder.close()


def test_one_command_starts_a_run_and_goes_on_with_it(flatout: Cli, tmp_path: Path) -> None:
    words = (*COMMAND, "--run-dir", tmp_path / "run", "--continue")
    for steps in (128, 256):
        assert flatout(*words, "--steps", steps).code == 0
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert summary["steps"] == steps
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [64, 128, 256]
    other = flatout(*words, "--steps", 256, "--gamma", 0.5)
    sentence(other, 2, f"--continue|{tmp_path / 'run'}|gamma is 0.99 there, 0.5 here|--run-dir")


def test_a_total_below_the_steps_of_a_resumed_run_is_named(flatout: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert flatout(*COMMAND, "--run-dir", run, "--steps", 192).code == 0
    for steps, named in ((192, False), (130, False), (128, True)):  # an iteration has 64 steps
        result = flatout("train", "--resume", run, "--quiet", "--steps", steps)
        assert result.code == 0
        assert ("which is the run's total" in result.err) == named
    assert f"for 128 more: flatout train --resume {run} --steps 320" in result.err


@pytest.mark.usefixtures("shared_programs")
def test_parameters_that_do_not_fit_are_refused_before_there_is_a_folder(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert flatout(*COMMAND, "--steps", 64, "--run-dir", "run").code == 0
    for flags, words in (
        (("--hidden", "16,16"), "hidden is (64, 64) there, (16, 16) here"),
        (("--env", "Acrobot-v1"), "env is 'CartPole-v1' there, 'Acrobot-v1' here"),
        (("--frame-stack", "2"), "frame_stack is None there, 2 here"),
        (("--normalize-observation",), "normalize_observation is False there, True here"),
    ):
        for where in ((), ("--run-dir", "new")):
            done = flatout("train", "--from", "run", *flags, *where)
            sentence(done, 2, f"--from run|{words}|train without --from")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    done = flatout("train", "--from", "run", "--gamma", "0.5", "--steps", 64, "--run-dir", "new")
    assert done.code == 0, "what changes no shape may differ"


def test_a_folder_without_a_run_is_a_start(tmp_path: Path) -> None:
    config = asked(tmp_path)
    assert continued(config, False) == (config, False)


def test_a_run_keeps_its_placement_unless_another_is_named(tmp_path: Path) -> None:
    saved(tmp_path, placement="act=cpu learn=cpu schedule=overlapped lag=1")
    found, resumed = continued(asked(tmp_path), False)
    assert resumed
    assert found.run.placement == "act=cpu learn=cpu schedule=overlapped lag=1"
    found, _ = continued(asked(tmp_path, "--placement", "cpu", "--steps", "7"), False)
    assert (found.run.placement, found.run.steps) == ("cpu", 7)
    found, _ = continued(asked(tmp_path, "--devices", "1"), False)
    assert found.run.placement == "act=cpu schedule=overlapped lag=1"


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ((), ("--seed", "3"), "seed is 0 there, 3 here"),
        (("--hidden", "8"), (), r"hidden is \(8,\) there, \(64, 64\) here"),
        (("--learning-rate", "0.1"), (), "learning_rate is '?0.1'? there"),
        ((), ("--seed", "3", "--gamma", "0.5", "--envs", "4", "--n-epochs", "1"), "and 1 more"),
    ],
)
def test_another_setting_is_refused_by_its_name(
    before: tuple[str, ...], now: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    saved(tmp_path, *before)
    with pytest.raises(UsageError, match=words) as caught:
        continued(asked(tmp_path, *now), False)
    assert "\n" not in str(caught.value)


def test_another_algorithm_is_refused_by_its_name(tmp_path: Path) -> None:
    saved(tmp_path)
    words = ["a2c", *tiny.flags("a2c"), "--run-dir", str(tmp_path)]
    with pytest.raises(UsageError, match="algorithm is 'ppo' there, 'a2c' here"):
        continued(train_config(words)[0], False)


def test_one_run_is_no_population(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(UsageError, match="holds a single run, not a population"):
        continued(asked(tmp_path), True)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "--run-dir DIR"),
        (("--resume", "run"), "--resume"),
        (("--from", "run"), "--from"),
    ],
)
def test_continue_needs_a_folder_and_nothing_else_to_start_from(
    flags: tuple[str, ...], words: str, flatout: Cli, tmp_path: Path
) -> None:
    saved(tmp_path / "run")
    given = [tmp_path / "run" if word == "run" else word for word in flags]
    command = COMMAND if "--resume" not in flags else ("train",)
    sentence(flatout(*command, *given, "--continue"), 2, f"--continue|{words}")


@pytest.mark.slow
def test_a_population_goes_on_with_the_same_members_alone(flatout: Cli, tmp_path: Path) -> None:
    words = (*COMMAND, "--env-backend", "device", "--run-dir", tmp_path / "p", "--continue")
    for steps in (128, 256):
        assert flatout(*words, "--steps", steps, "--seeds", 2).code == 0
    for member in (tmp_path / "p" / "members").iterdir():
        assert json.loads((member / "summary.json").read_text())["steps"] == 256
    other = flatout(*words, "--steps", 256, "--seeds", 3)
    sentence(other, 2, "--continue|other members|--seeds")
    sentence(flatout(*words, "--steps", 256), 2, "holds a population|--run-dir")


@pytest.mark.parametrize("python", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_resume_reads_the_settings_when_no_other_process_can_change_them(
    python: bool, flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until another process lets go of the folder, it has trained on, and logs more rows."""
    run = tmp_path / "run"
    assert flatout(*COMMAND, "--steps", 128, "--run-dir", run).code == 0
    agent = PPO.load(run)

    class Lock(locks.Lock):
        def __init__(self, path: Path) -> None:
            monkeypatch.setattr(locks, "Lock", free)
            more = ("--steps", "256", "--log-every", "32", "--quiet")
            assert main(["train", "--resume", str(run), *more]) == 0
            super().__init__(path)

    free = locks.Lock
    monkeypatch.setattr(locks, "Lock", Lock)
    if python:
        agent.learn(64, run_dir=run)
    else:
        assert flatout("train", "--resume", run, "--steps", 320, "--quiet").code == 0
    settings = json.loads((run / "config.json").read_text())["settings"]
    assert (settings["steps"], settings["log_every"]) == (320, 32)
    assert json.loads((run / "summary.json").read_text())["steps"] == 320


def test_a_run_that_began_meanwhile_is_not_taken_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lock(locks.Lock):
        def __init__(self, path: Path) -> None:
            monkeypatch.setattr(locks, "Lock", free)
            saved(tmp_path / "run")
            super().__init__(path)

    free = locks.Lock
    monkeypatch.setattr(locks, "Lock", Lock)
    with pytest.raises(UsageError, match="already holds a run"):
        RunFolder(tmp_path / "run")
    RunFolder(tmp_path / "run", resume=True).close()
