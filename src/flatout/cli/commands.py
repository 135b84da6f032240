"""The ten commands and their flags. Heavy imports are made only when a command needs them."""

from __future__ import annotations

import faulthandler
import importlib
from typing import Any, NamedTuple

from flatout.errors import UsageError, nearest
from flatout.version import __version__
from flatout_explain.cli.parsing import Flag, UnknownFlagError

OVERVIEW = """\
Flatout trains deep reinforcement-learning agents as fast as this machine's cores and GPUs allow.

train an agent         flatout train ppo --env CartPole-v1 --stop-at-return 475 --run-dir runs/first
watch it, evaluate it  flatout eval runs/first --show
my own environment     flatout train ppo --env my_module:make --envs 8
                         (my_module.py is in this folder; make() returns a Gymnasium environment)
many seeds, settings   flatout sweep ppo --env CartPole-v1 --grid learning-rate=1e-4,1e-3 --seeds 5
why is it slow?        flatout explain -- python train.py
                         (any PyTorch, TensorFlow or JAX program, unchanged; a run: its folder)
what would be faster?  flatout plan ppo --env CartPole-v1 --envs 8

flatout --help lists all commands and presets, flatout COMMAND --help a command's flags.
"""

HELP = """\
usage: flatout COMMAND ...

Deep reinforcement learning with every part of the work on the hardware where it runs fastest.

commands:
  train ALGORITHM   train an agent: {algorithms}
                      flatout train ppo --env CartPole-v1
                      flatout train ppo --preset cartpole-ppo
                      flatout train ppo --env CartPole-v1 --env-backend device --seeds 8
                      flatout train --resume RUN_DIR
                      flatout train --from RUN_DIR --learning-rate 1e-4
  sweep SWEEP.toml  many configurations with several seeds each, on all of the machine
                      flatout sweep ppo --env CartPole-v1 --grid gamma=0.98,0.99 --seeds 5
                      flatout sweep --resume DIR
  eval RUN_DIR      play greedy episodes with a trained agent
                      flatout eval RUN_DIR --out video.mp4
                      flatout eval RUN_DIR --show     (in the terminal, also while it learns)
  runs [DIR]        a table of runs: return, speed, verdict, state (--where, --sort)
                      flatout runs --compare A B      (settings, curves, speed, time)
  report [RUN ...]  which settings are better, and how sure that is, over seeds
                      flatout report --out report.html
                      flatout report --curves RUN ... (learning curves, with confidence bands)
  export RUN_DIR    the agent as one Python file that needs NumPy alone
                      flatout export RUN_DIR --out policy.py
  explain RUN_DIR   why the hardware is idle, what to change, and what that gains (--try)
                      flatout explain -- python any_training_script.py
                      flatout explain --against "python fixed.py" -- python script.py
  plan ALGORITHM    measure where each part of a run is fastest on this machine (--what-if cores=16)
                      flatout plan ppo --env CartPole-v1 --envs 8
                      flatout plan classify --compare-devices 1,2,4 --run
                      flatout plan --table            (CPU, GPU or both? by network and algorithm)
  check ENV         what is wrong with an environment, and what training would make of it
                      flatout check my_module:make
  devices           what this machine has, who uses it, and what a run would use
                      flatout devices --cores         (how many cores really run at once)

presets: {presets}

flatout COMMAND --help shows a command's flags, --help-all also those of train, sweep and plan that
are used seldom. --version prints the version; --completion bash (or zsh) a script that completes
commands and flags: eval "$(flatout --completion bash)"
"""


class Command(NamedTuple):
    """Where a command is defined.

    Attributes:
        module: its module in `flatout.cli`, and the function there that runs it.
        arguments: the module's dataclass of its flags.
    """

    module: str
    arguments: str


COMMANDS = {
    "train": Command("train", "TrainArguments"),
    "sweep": Command("sweep", "SweepArguments"),
    "eval": Command("evaluate", "EvalArguments"),
    "runs": Command("runs", "RunsArguments"),
    "report": Command("report", "ReportArguments"),
    "export": Command("export", "ExportArguments"),
    "explain": Command("explain", "RunArguments"),
    "plan": Command("plan", "PlanArguments"),
    "check": Command("check", "CheckArguments"),
    "devices": Command("devices", "DevicesArguments"),
}

RENAMED = {
    "fleet": "sweep",
    "watch": "eval RUN_DIR --show",
    "compare": "runs --compare RUN_A RUN_B",
    "plot": "report --curves RUN",
    "scale": "plan ALGORITHM --compare-devices 1,2,4 --run",
    "bench": "plan --table",
}
"""Earlier names of commands, with what to write instead."""


def dispatch(argv: list[str]) -> int:
    """Run one command; return the exit code.

    Raises:
        FlatoutError: any error that the user can correct.
    """
    if not argv:
        print(OVERVIEW, end="")
        return 0
    if argv[0] in ("-h", "--help", "--help-all", "help"):
        from flatout.config.schema import ALGORITHMS
        from flatout.config.settings import presets

        print(HELP.format(algorithms=", ".join(ALGORITHMS), presets=", ".join(presets())))
        return 0
    name, *rest = argv
    if name == "--version":
        print(f"flatout {__version__}")
        return 0
    if name.partition("=")[0] == "--completion":
        from flatout.cli.completion import completion

        shell = name.partition("=")[2] or "".join(rest[:1])
        print(completion(shell, {one: flags_of_command(one) for one in COMMANDS}), end="")
        return 0
    if name in RENAMED:
        raise UsageError(f"there is no command {name!r}; write flatout {RENAMED[name]}.")
    if name not in COMMANDS:
        raise UsageError(
            f"unknown command {name!r}; there is {', '.join(COMMANDS)}.{nearest(name, COMMANDS)}"
        )
    try:
        return _run(name, rest)
    except UnknownFlagError as error:
        raise UsageError(_unknown(name, error.flag)) from None


def _run(name: str, argv: list[str]) -> int:
    """Import a command's module and run the command. A signal ends it after its open files and
    processes are closed; `train` and `sweep` handle signals themselves."""
    command = COMMANDS[name]
    function = getattr(importlib.import_module(f"flatout.cli.{command.module}"), command.module)
    if name == "train":
        return function(argv)
    from flatout.output import leave
    from flatout.run.interrupts import Interrupts

    if not faulthandler.is_enabled():  # a crash, or a call that never returns, says where
        faulthandler.enable(file=2, all_threads=False)
    with Interrupts(leave) as interrupts:
        if name == "sweep":
            return function(argv, interrupts)
        with interrupts.discardable():
            return function(argv)


def arguments_of(name: str) -> Any:
    """Return the dataclass of a command's flags."""
    command = COMMANDS[name]
    return getattr(importlib.import_module(f"flatout.cli.{command.module}"), command.arguments)


def flags_of_command(name: str) -> list[Flag]:
    """Return the flags of a command, those of settings included."""
    from flatout.cli.arguments import SettingsArguments, command_flags
    from flatout.cli.flags import flags_of
    from flatout_explain.cli.arguments import ExplainArguments
    from flatout_explain.cli.parsing import own_flags

    kind = arguments_of(name)
    if issubclass(kind, SettingsArguments):
        return command_flags(kind)
    return own_flags(kind) if issubclass(kind, ExplainArguments) else flags_of(kind)


def _unknown(command: str, name: str) -> str:
    """Return a sentence about a flag or a word that a command does not know."""
    from flatout.config.aliases import meant

    flags = {one: [flag.typed for flag in flags_of_command(one)] for one in COMMANDS}
    if not name.startswith("-"):
        settings = "--learning-rate" in flags[command]
        hint = _word_hint(name) if settings else ""
        return f"flatout {command} does not know {name[:100]!r}.{hint}"
    if there := [f"flatout {one}" for one in COMMANDS if name in flags[one]]:
        *most, last = there
        having = f"{', '.join(most)} and {last}" if most else last
        return f"flatout {command} has no {name}; it is a flag of {having}."
    hint = meant(name, flags[command], flag=True)
    return f"flatout {command} does not know {name!r}.{hint}"


def _word_hint(word: str) -> str:
    """Return a hint about a word among settings that follows no flag."""
    if "=" in word:
        return " Repeat the flag for each KEY=VALUE: --env-kwargs a=1 --env-kwargs b=2."
    if word.replace(".", "", 1).isdecimal():
        return " A list is one word: --hidden 64,64."
    return f" An environment is given as --env {word[:100]}."
