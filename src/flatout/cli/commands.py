"""The command line: one function for each command. Heavy imports wait for their need."""

from __future__ import annotations

import faulthandler
import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from flatout.cli.arguments import given_settings, train_config
from flatout.cli.flags import take, take_all
from flatout.config.schema import ALGORITHMS, TrainConfig
from flatout.config.settings import presets, with_run
from flatout.errors import FlatoutError, UsageError, nearest
from flatout.version import __version__

HELP = """\
usage: flatout COMMAND ...

Deep reinforcement learning with every part of the work on the hardware where it runs fastest.

commands:
  train ALGORITHM   train an agent: {algorithms}
                      flatout train ppo --env CartPole-v1
                      flatout train ppo --preset cartpole-ppo
                      flatout train ppo --env CartPole-v1 --env-backend device --seeds 8
                        (--population gamma=0.98,0.99 --strategy auto|together|spread)
                      flatout train --resume RUN_DIR
                      flatout train ppo --env CartPole-v1 --run-dir RUN_DIR --continue
                        (resumes RUN_DIR, or starts it)
                      flatout train --from RUN_DIR --learning-rate 1e-4
  fleet SWEEP.toml  many configurations, each a group of seeds, filling what the machine has
                      flatout fleet ppo --env CartPole-v1 --grid gamma=0.98,0.99 --seeds 5
                      flatout fleet --resume DIR
  eval RUN_DIR      play greedy episodes with a trained agent (--episodes 20, --video out.gif)
  watch RUN_DIR     see the agent play in the terminal, also while it learns (--gif out.gif)
  explain RUN_DIR   why the hardware is idle, what to change, and what that gains (--try)
                      flatout explain -- python any_training_script.py
                      flatout explain --against "python fixed.py" -- python script.py
  plan ALGORITHM    measure where each part of a run is fastest on this machine (--what-if cores=16)
                      flatout plan ppo --env CartPole-v1 --envs 8
  bench placement   CPU, GPU or both? by network and algorithm, trained on this machine
  plot RUN ...      learning curves of runs and populations, with confidence bands
  export RUN_DIR    the agent as one Python file that needs NumPy alone (--numpy policy.py)
  runs [DIR]        a table of runs: return, speed, verdict, state (--where, --sort)
  compare A B       what differs between two runs: settings, curves, speed, time
  report [RUN ...]  which settings are better, and how sure that is, over seeds (--html FILE)
  scale ALGORITHM   the same work on several devices: what they gain, and what eats the rest
                      flatout scale classify --devices 1,2,4
  check ENV         what is wrong with an environment, and what training would make of it
                      flatout check my_module:make
  devices           what this machine has, who uses it, and what a run would use

presets: {presets}

flatout train ALGORITHM --help lists every setting; --version prints the version.
"""


def dispatch(argv: list[str]) -> int:
    """Run one command; returns the exit code.

    Raises:
        FlatoutError: anything that the user can mend.
    """
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": _train,
        "eval": _command("play", "evaluate"),
        "watch": _command("play", "show"),
        "explain": _command("explain", "explain"),
        "plan": _command("plan", "plan"),
        "bench": _command("bench", "bench"),
        "export": _command("export", "export"),
        "plot": _command("runs", "plot"),
        "runs": _command("runs", "runs"),
        "compare": _command("runs", "compare"),
        "report": _command("runs", "report"),
        "scale": _command("scale", "scale"),
        "fleet": _command("fleet", "fleet", stops=True),
        "check": _command("check", "check"),
        "devices": _command("devices", "devices"),
    }
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(HELP.format(algorithms=", ".join(ALGORITHMS), presets=", ".join(presets())))
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"flatout {__version__}")
        return 0
    if argv[0] not in commands:
        raise UsageError(
            f"unknown command {argv[0]!r}; there is {', '.join(commands)}."
            f"{nearest(argv[0], commands)}"
        )
    return commands[argv[0]](argv[1:])


def _train(argv: list[str]) -> int:
    started = time.perf_counter_ns() - int(max(_process_age(), 0.0) * 1e9)
    seeds, argv = take(argv, "--seeds")
    words, argv = take_all(argv, "--population")
    asked, argv = take(argv, "--strategy")
    source, _ = take(argv, "--from")
    goes_on, dry = "--continue" in argv, "--dry-run" in argv

    def settings() -> tuple[TrainConfig, bool]:
        """Return the settings that the arguments ask for; a resumed run has those of its folder."""
        config, resume = train_config([w for w in argv if w not in ("--continue", "--dry-run")])
        if not goes_on:
            return config, resume
        from flatout.cli.continuing import continued

        if resume or source is not None:
            raise UsageError("--continue finds out whether to resume: drop --resume and --from.")
        return continued(config, seeds is not None or bool(words))

    config, resume = settings()
    if source is not None and (seeds is not None or words):
        raise UsageError("--from starts one run: leave out --seeds and --population.")
    if not config.env.env:
        raise UsageError("no environment: pass --env ID, --env module:factory or --preset NAME.")
    from rich.console import Console

    from flatout.output import leave, print_json, reserve_stdout, say, stdout, trouble
    from flatout.run.interrupts import Interrupts
    from flatout.run.progress import Display
    from flatout.storage.run_folder import (
        POPULATION,
        RunFolder,
        default_folder,
        new_folder,
    )

    if config.run.json:
        reserve_stdout()
    path = Path(config.run.run_dir) if config.run.run_dir else default_folder(config)
    with Interrupts(leave) as interrupts:  # from here on a signal is never lost
        if seeds is not None or words or (resume and (path / POPULATION).exists()):
            from flatout.cli import population

            return population.train(
                config, seeds, words, asked, path, resume, interrupts, goes_on, dry
            )
        if asked is not None:
            raise UsageError("--strategy is for populations: --seeds or --population.")
        if dry:
            from flatout.cli.dry_run import dry_run

            with interrupts.discardable():
                return dry_run(config)
        start = None
        if source is not None:
            from flatout.cli.carried import start_from

            with interrupts.discardable():
                config, start = start_from(Path(source), config, given_settings(argv))
        named = config.run.run_dir is not None
        folder = RunFolder(path, resume, report=True) if named else new_folder(config)
        path, display = folder.named, Display()
        console = Console(stderr=config.run.json)
        try:
            if resume:  # as they are now that no other process can change them
                config, _ = settings()
            config = with_run(config, run_dir=str(path))
            if not config.run.quiet:
                from flatout.run.display import LiveDisplay

                display = LiveDisplay(config, console)
            from flatout.run.trainer import Trainer

            trainer = Trainer(
                config, folder=folder, resume=resume, start=start, display=display,
                started=started, interrupts=interrupts,
            )  # fmt: skip
            summary = trainer.run()
        except FlatoutError as error:
            folder.keep_traceback(error)
            raise
        finally:
            display.close()
            folder.close()
    if config.run.json:
        print_json(summary)
    if not config.run.quiet and summary and trainer.final is not None:  # it has trained
        from flatout.run.display import report

        report(summary, console)
    trouble(stdout(), f"the summary is in {path}")
    if trainer.interrupted is None:  # another signal came as the run ended
        return 0 if interrupts.signum is None else 128 + interrupts.signum
    state = "before the first step; nothing was trained"
    if summary:
        state = f"saved; go on with: flatout train --resume {path}"
    say(f"interrupted, {state}")
    return 128 + trainer.interrupted


def _process_age() -> float:
    """Seconds since this process was started.

    psutil's answer is wrong by up to seconds on Linux: it counts from the time of day of the boot,
    which the kernel gives in whole seconds and corrects whenever the clock is set.
    """
    if sys.platform == "linux":
        try:
            fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
            started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
            return time.clock_gettime(time.CLOCK_BOOTTIME) - started
        except (OSError, ValueError, IndexError):
            pass
    import psutil

    try:
        return time.time() - psutil.Process().create_time()
    except psutil.Error:
        return 0.0


def _command(module: str, name: str, stops: bool = False) -> Callable[[list[str]], int]:
    """A command whose module is imported on use, and which a signal ends at once, what it has
    opened being closed first; one that `stops` is given the signals instead."""

    def run(argv: list[str]) -> int:
        from flatout.output import leave
        from flatout.run.interrupts import Interrupts

        if not faulthandler.is_enabled():  # what crashes, or blocks for ever, says where
            faulthandler.enable(file=2, all_threads=False)
        with Interrupts(leave) as interrupts:
            if stops:
                return getattr(importlib.import_module(f"flatout.cli.{module}"), name)(
                    argv, interrupts
                )
            with interrupts.discardable():
                return getattr(importlib.import_module(f"flatout.cli.{module}"), name)(argv)

    return run
