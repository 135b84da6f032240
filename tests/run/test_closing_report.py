"""The report at a run's end fits a screen, and its commands, as those of `flatout explain RUN_DIR`,
can be pasted into a shell."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flatout.cli.arguments import TrainArguments, read_settings, settle
from flatout.cli.changed_command import changed_command, command_of_settings, with_commands
from flatout.config.settings import resolve, revise
from flatout.explain.runs import Evidence, closing
from flatout.explain.settings import flags
from flatout.run.display import command_lines, report
from flatout_explain.diagnosis import Diagnosis, Finding
from flatout_explain.report import show
from tests import runs_made
from tests.tiny import train_config

SUMMARY: dict[str, Any] = {
    "steps": 67_584, "episodes": 1326, "updates": 1584, "wall_s": 94.7, "startup_s": 13.4,
    "compile_s": 12.3, "compile_later_s": 1.2, "steps_per_s": 56_138.0, "ended": "steps",
    "placement": "act=cpu learn=cuda:0 replay=cuda:0 sampler=processes workers=2x8 "
    "schedule=overlapped",
    "return_mean_100": 381.1, "return_mean_last": 381.1,
    "time_to_return_s": {"475.0": None}, "steps_to_return": {"475.0": None},
    "phases": {"compile": 0.1, "other": 0.1}, "flow": {
        "environments_lost": 0, "policy_lag": 1.0, "sampler_wait_s": 12.0, "learner_wait_s": 40.1,
        "queue_s": 0.012, "act_bytes_per_step": 420.0, "learn_bytes_per_step": 800.0,
    },
    "steady": {
        "seconds": 80.1, "left_out": {"start-up": 1.2, "compiling": 12.3, "first iteration": 2.1},
        "phases": {"env": 0.4, "learn": 0.2, "act": 0.1, "log": 0.1, "publish": 0.08,
                   "replay": 0.05, "wait": 0.04, "eval": 0.02, "other": 0.01},
    },
    "verdict": "env-bound",
    "headline": "the learner is idle 73 % of the time; 47 % of the time goes into stepping "
    "environments",
    "try": {"id": "env-bound", "share": 0.47, "remedy": "", "setting": ["--envs", "16"]},
    "run_dir": "runs/ppo-CartPole-v1-0-20261129-230911",
}  # fmt: skip
AGAIN = shlex.split(
    "flatout train ppo --env my_module:make --env-kwargs level=3 --envs 16 --n-steps 64 --hidden "
    "256,256 --learning-rate lin_0.001 --placement 'sampler=processes workers=2x8'"
)


def shown(width: int | None, summary: dict[str, Any] = SUMMARY, again: list[str] = AGAIN) -> str:
    """Return the report in a terminal of this width, or in a file if it is None."""
    file = io.StringIO()
    report(summary, Console(file=file, width=width, force_terminal=bool(width), no_color=True,
                            color_system=None), again)  # fmt: skip
    return file.getvalue()


def section(text: str, label: str) -> str:
    """Return the lines of a label, without it and their indentation."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(label))
    rest = lines[start + 1 :]
    count = next((n for n, line in enumerate(rest) if not line.startswith(" " * 9)), len(rest))
    return "\n".join(line[9:] for line in lines[start : start + 1 + count])


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30)])
def test_it_fits_a_terminal(width: int, height: int) -> None:
    simple = {**SUMMARY, "flow": {"environments_lost": 0}, "placement": "cpu"}
    for summary in (simple, SUMMARY):
        lines = shown(width, summary).splitlines()[1:]  # the first one is empty
        assert len(lines) < height, "\n".join(lines)  # the prompt follows
        assert max(map(len, lines)) <= width, "\n".join(lines)


def test_a_command_that_learns_something_else_says_so() -> None:
    tried = {
        **SUMMARY["try"],
        "remedy": "Use 16 environments. This changes what is learned: compare returns.",
    }
    assert section(shown(100, {**SUMMARY, "try": tried}), "TRY").endswith(
        "\nThis changes what is learned: compare returns."
    )


def test_a_tie_is_named_once_and_not_as_its_first_cause() -> None:
    tie = "a tie: env-bound (41 % of the time, 36 to 47) or acting-bound (38 %, 33 to 44)"
    assert section(shown(None, {**SUMMARY, "headline": tie}), "VERDICT") == tie


def test_a_narrow_terminal_wraps_no_bar() -> None:
    assert max(map(len, shown(60).splitlines())) <= 60
    narrow = [line for line in shown(40).splitlines() if "%  " in line]
    assert narrow
    assert not any("█" in line for line in shown(40).splitlines())


def test_a_long_bar_in_a_file_is_in_its_line() -> None:
    steady = {**SUMMARY["steady"], "phases": {"learn": 0.97, "other": 0.03}}
    lines = shown(None, {**SUMMARY, "steady": steady}).splitlines()
    assert [line.split()[0] for line in lines if "█" in line] == ["97.0%", "3.0%"]


@pytest.mark.parametrize("width", [60, 80, 200, None])
def test_its_commands_are_read_by_a_shell_as_they_are_shown(width: int | None) -> None:
    text = shown(width)
    tried, then = section(text, "TRY"), section(text, "NEXT")
    if width is None:
        assert len(tried.splitlines()) == 1
    assert as_a_shell_reads(tried) == AGAIN
    commands = then.replace("\\\n", "").splitlines()
    resume = [shlex.split(line) for line in commands if line.startswith("flatout train")]
    folder = SUMMARY["run_dir"]
    assert resume == [["flatout", "train", "--resume", folder, "--steps", "135168"]]
    assert f"flatout eval {folder} --show" in commands


def as_a_shell_reads(command: str) -> list[str]:
    """Return the words of a command that is pasted into a shell."""
    ran = subprocess.run(
        ["bash", "-c", f'flatout() {{ printf "%s\\n" flatout "$@"; }}\n{command}'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return ran.stdout.splitlines()


@pytest.mark.parametrize("width", [60, 80, 200, None])
def test_explains_command_is_read_by_a_shell_as_it_is_shown(width: int | None) -> None:
    evidence, remedy, setting = ("env takes 64 % of the time",), "Use 16.", ("--envs", "16")
    finding = Finding("env-bound", 0.64, evidence, remedy, setting=setting, command=tuple(AGAIN))
    diagnosis = Diagnosis("runs/a", "env-bound", "the learner is idle", (finding,), 80.0)
    file = io.StringIO()
    show(diagnosis, Console(file=file, width=width, force_terminal=bool(width), no_color=True,
                            color_system=None), command_lines)  # fmt: skip
    *command, concern, words = section(file.getvalue(), "TRY").splitlines()
    assert (concern, words) == ("concerns 64 % of the time", remedy)
    assert len(command) == 1 if width is None else max(map(len, command)) <= width - 9
    assert as_a_shell_reads("\n".join(command)) == AGAIN


@pytest.mark.parametrize(
    ("env", "in_python"), [("CartPole-v1(...)", False), ("__main__:make", False), ("mine:X", True)]
)
def test_a_run_that_was_made_in_python_is_changed_there(env: str, in_python: bool) -> None:
    setting = flags({"envs": 16, "placement": "sampler=processes workers=2x8", "tensorboard": False,
                     "stop_at_return": -3.5})  # fmt: skip
    finding = Finding("env-bound", 0.64, ("env takes 64 % of the time",), "Use 16.",
                      setting=setting)  # fmt: skip
    diagnosis = Diagnosis("runs/a", "env-bound", "the learner is idle", (finding,), 80.0)
    given = {"envs": 16, "placement": "sampler=processes workers=2x8", "tensorboard": False,
             "stop_at_return": -3.5}  # fmt: skip
    assert closing(diagnosis)["try"]["arguments"] == given
    evidence = Evidence("runs/a", resolve("ppo", {"env": env, "envs": 8}), in_python=in_python)
    evidence = Evidence.from_json(json.loads(json.dumps(evidence.as_json())))
    file = io.StringIO()
    show(with_commands(diagnosis, evidence), Console(file=file), command_lines)
    tried = section(file.getvalue(), "TRY")
    assert tried.startswith(
        "Pass envs=16, placement='sampler=processes workers=2x8', tensorboard=False, "
        "stop_at_return=-3.5 where the agent is made. Use 16."
    )
    assert "--" not in tried
    assert ("pass a function that makes it" in tried) == env.endswith("(...)")


def test_a_long_command_is_broken_between_flags() -> None:
    lines = command_lines(shlex.join(AGAIN), 60)
    assert len(lines) > 1
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert all(line.startswith("--") for line in lines[1:])
    assert max(map(len, lines)) <= 60
    assert command_lines("flatout eval 'my run'", 10) == ["flatout \\", "eval \\", "'my run'"]


KINDS = [
    "ppo --env tests.bad_envs:Good --envs 8 --n-steps 32 --run-dir runs/first",
    "ppo --env tests.bad_envs:Good --env-kwargs a=1 --env-kwargs 'b=\"it is\"' --envs 8",
    "ppo --preset cartpole-ppo --run-dir runs/first",
    "ppo --preset cartpole-ppo --envs 32 --learning-rate 1e-4 --no-tensorboard",
    "--preset cartpole-ppo --steps 1000",
    "dqn --env CartPole-v1 --hidden 64 --hidden 32 --stop-at-return=-3.5 --double",
    "ppo --env CartPole-v1 --placement 'sampler=processes workers=2x4' --threshold 1,2",
]


@pytest.mark.parametrize("typed", KINDS)
@pytest.mark.parametrize(
    "changes", [{"envs": 16}, {"placement": "sampler=processes workers=2x8", "envs": 16}]
)
def test_the_command_to_try_has_the_runs_settings_but_for_the_remedy(
    typed: str, changes: dict[str, Any]
) -> None:
    asked, given = read_settings(TrainArguments, "flatout train", shlex.split(typed))
    config, _ = settle(asked, given)
    wanted = revise(config, {**changes, "run_dir": None})
    for words in (
        changed_command(asked, given, config, flags(changes)),
        command_of_settings(config, flags(changes)),  # where only the settings are known
    ):
        assert words[:2] == ["flatout", "train"]
        read, resumed = train_config(words[2:])
        assert not resumed
        assert read.flat() == wanted.flat()


def test_a_placement_takes_the_place_of_a_number_of_devices() -> None:
    typed = "ppo --env CartPole-v1 --envs 8 --devices 2 --shards 2"
    asked, given = read_settings(TrainArguments, "flatout train", typed.split())
    config, _ = settle(asked, given)
    words = changed_command(asked, given, config, ["--placement", "learn=cpu:0,cpu:1"])
    assert shlex.join(words[2:]) == (
        "ppo --env CartPole-v1 --envs 8 --shards 2 --placement learn=cpu:0,cpu:1"
    )


def test_a_resumed_runs_settings_are_in_its_command() -> None:
    config, _ = train_config(["ppo", "--env", "tests.bad_envs:Good", "--envs", "8", "--gamma", "1"])
    asked = TrainArguments(resume="runs/first")
    words = changed_command(asked, {"steps": "1000"}, config, ["--envs", "16"])
    read, resumed = train_config(words[2:])
    assert not resumed
    changes = {"envs": 16, "placement": read.run.placement}
    assert read.flat() == revise(config, changes).flat()


@pytest.mark.parametrize(
    ("algorithm", "given", "changes"),
    [
        ("ppo", {"log_every": 64}, {"log_every": 6400}),
        ("ppo", {"wandb": "mine", "tensorboard": False}, {"checkpoint_every": 5000}),
        ("ppo", {"keep_checkpoints": 1}, {"spare_envs": "all"}),
        ("ppo", {"env_backend": "host"}, {"env_backend": "device", "placement": "auto"}),
        ("ppo", {"placement": "learn=cpu:0,cpu:1", "virtual_devices": 2}, {"eval_every": 5000}),
        ("ppo", {"placement": "sampler=cluster workers=2x4", "ray_address": "auto"},
         {"n_steps": 64}),
        ("ppo", {"devices": 2, "shards": 2}, {"placement": "learn=cpu:0,cpu:1 replay=device"}),
        ("ppo", {"hidden": [32], "max_grad_norm": None, "normalize_advantage": False,
                 "learning_rate": "lin_0.001"}, {"envs": 16}),
        ("dqn", {"env_kwargs": {"name": "it's", "flag": True, "x": [1.5]}, "stop_at_return": -3.5},
         {"train_freq": 64, "gradient_steps": 16}),
        ("sac", {"env": "Pendulum-v1", "ent_coef": "auto_0.1"}, {"batch_size": 1024}),
        ("classify", {"size": "large", "batch_size": 64}, {"batch_size": 256}),
        ("classify", {"data": "mine.npz", "network": "mine:make"}, {"placement": "gpu"}),
        ("tests.own_algorithms:make", {"hp": {"lr": 0.5, "size": 3}}, {"envs": 4}),
    ],
)  # fmt: skip
def test_a_command_from_a_folders_settings_has_all_of_them(
    algorithm: str, given: dict[str, Any], changes: dict[str, Any]
) -> None:
    env = {} if algorithm == "classify" else {"env": "CartPole-v1", "envs": 8}
    once = {"run_dir": "runs/first", "quiet": True, "json": True, "trace": True}
    config = resolve(algorithm, env | given | once)
    words = command_of_settings(config, flags(changes))
    read, _ = train_config(words[2:])
    once = {"run_dir": None, "quiet": False, "json": False, "trace": False}
    once |= {"devices": None} if "placement" in changes else {}
    assert read.flat() == revise(config, changes, once).flat()


def test_a_command_starts_from_the_same_run(tmp_path: Path) -> None:
    before = runs_made.folder(
        tmp_path / "before", [20.0], envs=8, n_steps=64, learning_rate=1e-3, placement="cpu"
    )
    # Its settings, but for the learning rate, which is the default again.
    config = resolve("ppo", {"env": "CartPole-v1", "envs": 8, "n_steps": 64, "seed": 7,
                             "placement": "cpu", "run_dir": str(tmp_path / "run")})  # fmt: skip
    words = command_of_settings(config, ["--envs", "16"], str(before))
    assert words[2:5] == ["ppo", "--from", str(before)]
    assert "--n-steps" not in words, "the other run has it"
    read, _ = train_config(words[2:])
    assert read.flat() == revise(config, {"envs": 16, "run_dir": None}).flat()
    assert command_of_settings(config, ["--envs", "16"], str(tmp_path / "moved")) == []


@pytest.mark.parametrize(
    "given",
    [
        {"env": "CartPole-v1(...)"},
        {"env": "__main__:make"},
        {"env_kwargs": {"layout": {"walls": None}}},  # flags give no null
        {"algorithm": "mine:make(...)"},
    ],
)
def test_what_no_command_can_say_has_none(given: dict[str, Any]) -> None:
    settings = {"algorithm": "ppo", "env": "CartPole-v1"} | given
    config = resolve(settings["algorithm"], settings)
    assert command_of_settings(config, ["--envs", "16"]) == []
