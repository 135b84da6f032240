"""What people type, and what they read first: each is understood, or answered in one sentence."""

from __future__ import annotations

import errno
import io
import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from rich.console import Console

from flatout import DQN, PPO, Agent, UsageError
from flatout.cli import plan as plan_command
from flatout.config.settings import resolve
from flatout.errors import EnvironmentFailure, FlatoutError, one_line
from flatout.hardware.inventory import inventory
from flatout.output import Output
from flatout.run import auto, planner
from flatout.run.display import LiveDisplay
from flatout.run.evaluate import greedy_episode
from flatout.run.progress import Progress
from flatout.run.summary import next_commands
from flatout.types import NAMED
from flatout_explain.errors import LONGEST
from tests import tiny
from tests.bad_envs import Good, Raises
from tests.cli.test_plan import KNOWN, SMALL
from tests.cli.test_terminal import Unwritable
from tests.conftest import TINY, Result
from tests.envs.test_check import opened
from tests.tiny import train_config

Cli = Callable[..., Result]
TRAIN = ("ppo", "--env", "CartPole-v1")


# Settings


@pytest.mark.parametrize(
    "words",
    [
        ("--hidden", "32,16"), ("--hidden=32,16",), ("--hidden", "32", "--hidden", "16"),
        ("--hidden", "32,", "--hidden=16"),
    ],
)  # fmt: skip
def test_lists_are_written_with_commas_or_by_repeating_the_flag(words: tuple[str, ...]) -> None:
    config, _ = train_config([*TRAIN, *words, "--threshold", "-100,-1e1"])
    assert config.network.hidden == (32, 16)
    assert config.run.threshold == (-100.0, -10.0)
    assert train_config([*TRAIN, "--critic-hidden", "None"])[0].hyper.critic_hidden is None


def test_a_list_with_an_empty_place_is_refused() -> None:
    with pytest.raises(UsageError, match="empty place"):
        train_config([*TRAIN, "--hidden", "64,,64"])


@pytest.mark.parametrize("value", ["32,16", "[32, 16]", (32, 16), [32, 16]])
def test_so_are_they_in_files_and_in_python(value: Any, tmp_path: Path) -> None:
    assert resolve("ppo", {"hidden": value}).network.hidden == (32, 16)
    if isinstance(value, str):
        (tmp_path / "s.toml").write_text(f'hidden = "{value}"')
        config, _ = train_config([*TRAIN, "--config", str(tmp_path / "s.toml")])
        assert config.network.hidden == (32, 16)


@pytest.mark.parametrize("value", ["32,x", "", ",", "32,16.5", "1e999", "nan"])
def test_other_lists_are_refused(value: str) -> None:
    with pytest.raises(UsageError, match="hidden"):
        resolve("ppo", {"hidden": value})
    with pytest.raises(UsageError, match="hidden"):
        train_config([*TRAIN, f"--hidden={value}"])


def test_a_list_takes_no_word_that_follows(flatout: Cli) -> None:
    """A path after a list of networks stays a path."""
    result = flatout("plan", "--table", "--hidden=64,64", "--hidden=64,x", exact=True)
    assert "--hidden: 'x' is not a whole number" in result.message
    table = ("--normalize", "CartPole-v1=0,1", "no-such-run")
    for words in (table, ("--curves", "--group", "seed", "no-such-run")):
        assert "no-such-run" in flatout("report", *words).message


def test_algorithms_are_known_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('algorithm = "PPO"\nenv = "CartPole-v1"')
    for words in (["PPO", *TRAIN[1:]], ["--config", str(tmp_path / "s.toml")]):
        assert train_config(words)[0].algorithm == "ppo"
    agent = Agent("CartPole-v1", algorithm="Dqn")
    assert (agent.algorithm, agent.config) == ("dqn", DQN("CartPole-v1").config)
    with pytest.raises(UsageError, match=r"'PQO'.*Did you mean 'ppo'"):
        train_config(["PQO", *TRAIN[1:]])


@pytest.mark.parametrize("words", [("--device", "gpu"), ("--device=cuda:0",), ("--cuda",)])
def test_a_device_is_answered_with_its_flag(flatout: Cli, words: tuple[str, ...]) -> None:
    flag = words[0].partition("=")[0]
    assert f"'{flag}'. Instead: --placement gpu" in flatout("train", *TRAIN, *words).message


# Folders


COMMANDS = (
    "eval {}", "eval --show {}", "explain {}", "export {} --out p.py", "train --resume {}",
    "train --from {}", "report --curves {}", "runs --compare {} {}", "sweep --resume {}",
)  # fmt: skip
QUICKLY = """
import sys
from flatout.__main__ import main
for line in sys.argv[1:]:
    assert main(line.split()) == 2, line
    assert "jax" not in sys.modules, line
"""


def test_a_missing_folder_is_answered_before_jax_is_imported(tmp_path: Path) -> None:
    lines = [line.format("no-such-run", "no-such-run") for line in COMMANDS]
    done = subprocess.run(
        [sys.executable, "-c", QUICKLY, *lines], cwd=tmp_path, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == ["flatout: no-such-run does not exist."] * len(COMMANDS)


# Questions about other machines


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan for `SMALL` was measured before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config, _ = train_config(list(SMALL))
    auto.remember(config, inventory(), NAMED, KNOWN)


@pytest.mark.parametrize(
    "change",
    ["gpu=A100", "gpus=2", "hidden=64,x", "hidden=0", "batch=many", "batch=7", "batch=99999999999"],
)
def test_what_cannot_be_answered_is_refused_before_anything_is_measured(
    change: str, flatout: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_command, "_answer", lambda *_: pytest.fail("it measures"))
    result = flatout("plan", *SMALL, "--what-if", "cores=16", "--what-if", change)
    assert (result.code, result.out) == (2, "")
    assert f"--what-if {change}: " in result.message


@pytest.mark.usefixtures("planned")
def test_a_plan_is_printed_and_written_although_a_question_fails(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise FlatoutError("the probe ended.")

    monkeypatch.setattr(planner, "measured", fails)
    file = tmp_path / "plan.json"
    result = flatout(
        "plan", *SMALL, "--what-if", "cores=4", "--what-if", "hidden=8,8", "--out", file
    )
    assert (result.code, result.message) == (1, "the probe ended.")
    assert f"take {KNOWN.words()}" in result.out
    assert "what if cores=4: " in result.out
    values = json.loads(file.read_text())
    assert [one["change"] for one in values["what_if"]] == ["cores=4"]
    unwritable = tmp_path / "no folder" / "plan.json"
    result = flatout("plan", *SMALL, "--save-machine", unwritable)
    assert result.out == "", "nothing is measured before"
    assert str(unwritable) in result.message


# What a run says


def shown(*, returns: list[float], load: tuple[float, str] | None) -> str:
    """A line of a run's progress."""
    file = io.StringIO()
    display = LiveDisplay(resolve("ppo", {"env": "CartPole-v1"}), Console(file=file, width=200))
    if load is not None:
        display.load(*load)
    progress = Progress(steps=512, episodes=len(returns))
    progress.returns.extend(returns)
    display.update(progress, {}, wall_s=20.0)
    return file.getvalue()


def test_the_first_line_has_no_figures_that_there_are_not() -> None:
    assert shown(returns=[], load=None).split() == ["step", "512/100,000", "episodes", "0"]
    line = shown(returns=[4.0, 6.0], load=(1234.5, "cpu 50 % of 2 cores"))
    assert "return 5.0 (last 10: 5.0)   1,234 steps/s   cpu 50 %" in line


def test_a_terminal_shows_none_either() -> None:
    file = io.StringIO()
    console = Console(file=file, width=100, force_terminal=True)
    display = LiveDisplay(resolve("ppo", {"env": "CartPole-v1"}), console)
    display.update(Progress(steps=512), {}, wall_s=20.0)
    display.close()
    assert "steps/s" in file.getvalue()
    assert "nan" not in file.getvalue()


def test_a_narrow_terminal_shows_whole_numbers() -> None:
    """An exponent that is cut off makes another number."""
    file = io.StringIO()
    console = Console(file=file, width=44, force_terminal=True)
    display = LiveDisplay(resolve("ppo", {"env": "CartPole-v1"}), console)
    progress = Progress(steps=99_328, updates=15_520, episodes=1, returns=deque([5.0], 100))
    display.update(progress, {"policy_loss": -1.234e-05, "value_loss": 5.678e-05}, wall_s=20.0)
    display.close()
    for shown_ in ("-1.234e-05", "5.678e-05", "99,328", "15,520", "0:00:00"):
        assert shown_ in file.getvalue()


@pytest.mark.parametrize("width", [60, 80])
def test_a_long_name_leaves_room_for_the_times(width: int) -> None:
    file = io.StringIO()
    config = resolve("ppo", {"env": "my_package.environments.warehouse:make_one_with_obstacles"})
    display = LiveDisplay(config, Console(file=file, width=width, force_terminal=True))
    display.update(Progress(steps=512), {}, wall_s=20.0)
    display.close()
    assert "with_obstacles" in file.getvalue()
    assert "0:00:00" in file.getvalue()
    assert "-:--:--" in file.getvalue()


def test_a_reader_that_leaves_is_told_what_happens_to_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = resolve("ppo", {"env": "CartPole-v1", "run_dir": "runs/mine"})
    broken = Output(Unwritable(BrokenPipeError(errno.EPIPE, "Broken pipe")), "standard output")
    display = LiveDisplay(config, Console(file=broken))  # type: ignore[arg-type]
    display.note("the first")
    display.note("the second")
    (line,) = capsys.readouterr().err.splitlines()
    assert "the run continues without its display" in line
    assert "runs/mine" in line
    assert "Ctrl-C" in line


def test_a_runs_end_names_the_next_commands(flatout: Cli, tmp_path: Path) -> None:
    run = tmp_path / "my run"
    loud = [word for word in TINY if word != "--quiet"]
    result = flatout("train", "ppo", *loud, "--run-dir", run)
    assert result.code == 0
    for command in (f"eval '{run}'", f"eval '{run}' --show"):
        assert f"flatout {command}\n" in result.out
    assert next_commands({"run_dir": None}) == []
    assert next_commands({"run_dir": "r", "examples_per_s": 1.0}) == []


class Vast(Raises):
    """Raises five million characters."""

    def observe(self, action: float) -> Any:
        raise ValueError("no\n" * 2_000_000)


@pytest.mark.parametrize("size", [0, 1, 499, 501, 1001, 5_000_000])
def test_texts_of_exceptions_are_cut(size: int) -> None:
    line = one_line(ValueError("begin" + "x" * size + "end"))
    assert len(line) < 600
    assert (line.startswith("begin"), line.endswith("end")) == (True, True)
    assert (f"{size + 8 - LONGEST:,} characters" in line) == (size + 8 > LONGEST)


def test_a_vast_exception_is_a_short_sentence() -> None:
    task = opened(Vast)
    envs = task.open(1, seed=0)
    try:
        with pytest.raises(EnvironmentFailure, match=r"no no .* characters \.\.\.\] ") as raised:
            envs.reset_all(np.zeros((1, 4), np.float32))
    finally:
        envs.close()
    assert len(str(raised.value)) < 1000


# Videos


class Undrawn(Good):
    """Renders as MuJoCo does where there is no display."""

    error: Exception = RuntimeError("No OpenGL backend could be imported.")

    def render(self) -> Any:
        raise self.error


class Unmade(Undrawn):
    """Finds that out when it is made."""

    def __init__(self, **settings: Any) -> None:
        if settings.get("render_mode"):
            raise self.error
        super().__init__(**settings)


def video(kind: Callable[..., gym.Env[Any, Any]]) -> None:
    for _ in greedy_episode(opened(kind), None, 0, ("rgb_array",)):  # type: ignore[arg-type]
        break


@pytest.mark.parametrize("kind", [Undrawn, Unmade])
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("No OpenGL backend could be imported. Attempting to create a context"),
        ValueError("gladLoadGL error"),
        AttributeError("'NoneType' object has no attribute 'glGetError'"),  # without OSMesa
        RuntimeError("Failed to make the EGL context current."),
        OSError("(65550) b'X11: The DISPLAY environment variable is missing'"),
    ],
)  # fmt: skip
def test_a_video_without_a_display_names_what_works(
    kind: Any, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Undrawn, "error", error)
    with pytest.raises(UsageError, match=r"there is no display\. .* MUJOCO_GL=egl"):
        video(kind)
    monkeypatch.setenv("MUJOCO_GL", "egl")
    with pytest.raises(UsageError, match=r"MUJOCO_GL=egl: .* library EGL .* MUJOCO_GL=osmesa"):
        video(kind)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    for display in ("", ":0"):
        monkeypatch.setenv("DISPLAY", display)
        with pytest.raises(UsageError, match=r"library OSMesa is missing.* set MUJOCO_GL=egl\.$"):
            video(kind)
    monkeypatch.delenv("MUJOCO_GL")
    with pytest.raises((UsageError, EnvironmentFailure)) as raised:
        video(kind)
    assert "MUJOCO_GL" not in str(raised.value)


def test_whatever_rendering_raises_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Undrawn, "error", KeyError("camera"))
    with pytest.raises(EnvironmentFailure, match=r"raised KeyError in render: 'camera' \(.*\.py:"):
        video(Undrawn)


# Agents


def test_an_unknown_attribute_is_an_attribute_error_when_it_is_set() -> None:
    agent = PPO("CartPole-v1")
    for name in ("leraning_rate", "learning_rate"):
        with pytest.raises(AttributeError, match="would change nothing"):
            setattr(agent, name, 1.0)
    with pytest.raises(AttributeError, match=r"or loaded, by PPO\.load\(path, gamma=0\.9\)\."):
        agent.gamma = 0.9


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"position": 1.0}, "dict"), ((np.zeros(4, np.float32), {}), "tuple"), ("text", "str"),
        (None, "NoneType"), ([[1.0], [1.0, 2.0]], "list"), (np.array([None] * 4), "ndarray"),
        (np.zeros(3, np.float32), r"float32\[3\]"), ([1, 2], r"int64\[2\]"),
    ],
)  # fmt: skip
def test_predict_names_what_it_was_given(given: Any, words: str) -> None:
    agent = PPO("CartPole-v1", **tiny.python("ppo"))
    with pytest.raises(UsageError, match=rf"observations of shape \[4\] .*, not {words}\.$"):
        agent.predict(given, deterministic=True)
