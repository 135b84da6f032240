"""The ten commands: what their help shows, and how their words are read."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable

import pytest

from flatout.cli.arguments import setting_flags
from flatout.cli.commands import COMMANDS, HELP, OVERVIEW, flags_of_command
from flatout.cli.completion import completion
from flatout.cli.flags import flags_of
from flatout.config.hyper import HYPER
from flatout.config.schema import EnvConfig, NetworkConfig, RunConfig
from flatout_explain.cli.parsing import read
from tests.conftest import Result

Cli = Callable[..., Result]

TASKS = {
    "train an agent": "train ppo --env CartPole-v1",
    "train with tuned settings": "train ppo --preset cartpole-ppo",
    "train several seeds at once": "train ppo --env CartPole-v1 --env-backend device --seeds 8",
    "resume a run": "train --resume RUN_DIR",
    "train on from another run": "train --from RUN_DIR --learning-rate 1e-4",
    "search for settings": "sweep ppo --env CartPole-v1 --grid gamma=0.98,0.99 --seeds 5",
    "record a video": "eval RUN_DIR --out video.mp4",
    "see an agent play": "eval RUN_DIR --show",
    "compare two runs": "runs --compare A B",
    "say which settings are better": "report --out report.html",
    "draw learning curves": "report --curves RUN",
    "use a policy elsewhere": "export RUN_DIR --out policy.py",
    "say why another program is slow": "explain",
    "find the fastest placement": "plan ppo --env CartPole-v1 --envs 8",
    "say what a second device gains": "plan classify --compare-devices 1,2,4 --run",
    "check an environment": "check my_module:make",
    "see the machine's devices": "devices",
}
"""Tasks of users, with the command that the help shows for each."""


@pytest.mark.parametrize("task", TASKS)
def test_the_help_shows_the_command_for_a_task(task: str) -> None:
    name, *words = TASKS[task].split()
    assert TASKS[task] in HELP
    read(flags_of_command(name), name, words)


def test_the_command_alone_shows_six_commands_that_can_be_pasted_at_once() -> None:
    code = (
        "import sys; from flatout.__main__ import main; code = main([]); "
        "print(sorted({'jax', 'numpy', 'gymnasium', 'rich'} & {*sys.modules})); sys.exit(code)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, f"{OVERVIEW}[]\n"), ran.stderr
    lines = OVERVIEW.splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 100
    commands = [line.partition("  flatout ")[2] for line in lines if line[:1] != " "]
    commands = [shlex.split(command) for command in commands if command]
    assert [words[0] for words in commands] == [
        "train",
        "eval",
        "train",
        "sweep",
        "explain",
        "plan",
    ]
    for name, *words in commands:
        own = words[: words.index("--")] if "--" in words else words  # then a program's words
        read(flags_of_command(name), name, own)


def test_the_short_help_is_short_and_the_other_one_has_every_flag(flatout: Cli) -> None:
    for name in COMMANDS:
        long = flatout(name, "--help-all").out
        if name in ("train", "sweep", "plan"):
            shown = flatout(name, "--help").out
            assert shown.count("\n  --") <= 35
            assert "--help-all shows" in shown
            parts = (EnvConfig, NetworkConfig, HYPER["ppo"], RunConfig)
            flags = [flag for part in parts for flag in flags_of(part)]
        else:
            flags = flags_of_command(name)
        assert [flag.typed for flag in flags if not flag.word and flag.typed not in long] == []


def test_the_help_follows_the_algorithm_and_the_environment(flatout: Cli) -> None:
    assert "--sticky-actions" not in flatout("train", "dqn", "--help").out
    for words in (("dqn", "--env", "ALE/Breakout-v5"), ("--preset", "breakout-dqn")):
        assert "--sticky-actions" in flatout("train", *words, "--help").out
    supervised = flatout("train", "classify", "--help-all").out
    assert "Optimiser steps in total. [1000]" in supervised
    for words in ("Environment steps", "episodes", "--stop-at-return"):
        assert words not in supervised, words


@pytest.mark.parametrize(
    "words", ["--stop-at-return 0.9", "--threshold 0.9", "--eval-episodes 5", "--ray-address auto"]
)
def test_a_classifier_refuses_settings_of_environments(flatout: Cli, words: str) -> None:
    flag, value = words.split()
    found = flatout("train", "classify", flag, value, "--dry-run")
    assert (found.code, found.message) == (
        2, f"{flag} is for runs with an environment; classify has none."
    )  # fmt: skip
    assert flag not in flatout("train", "classify", "--help-all").out


def test_a_setting_is_a_switch_for_all_algorithms_or_for_none() -> None:
    kinds = {flag.name: bool(flag.value) for flag in setting_flags()}
    for hyper in HYPER.values():
        for flag in flags_of(hyper):
            assert bool(flag.value) == kinds[flag.name], (hyper, flag.name)


def test_a_shell_completes_commands_flags_and_values() -> None:
    words = ["sw", "train p", "eval run --ch", "train --preset cartpole-d", "eval x --checkpoint n"]
    found, flags = list[str](), {name: flags_of_command(name) for name in COMMANDS}
    for line in words:
        typed = ["flatout", *line.split()]
        script = (
            f"{completion('bash', flags)}\nCOMP_WORDS=({' '.join(typed)})\n"
            f"COMP_CWORD={len(typed) - 1}\n_flatout\n" + "echo ${COMPREPLY[@]}"
        )
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        found.append(done.stdout.strip())
    assert found == ["sweep", "ppo", "--checkpoint", "cartpole-dqn", "newest"]
