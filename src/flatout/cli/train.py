"""`flatout train`: one run, or a population of them, new or resumed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.cli.arguments import (
    TrainArguments,
    given_settings,
    read_settings,
    settle,
)
from flatout.config.schema import TrainConfig
from flatout.config.settings import with_run
from flatout.errors import FlatoutError, UsageError
from flatout.output import shell_word


def train(argv: list[str]) -> int:
    """Run ``flatout train``; return the exit code."""
    started = time.perf_counter_ns() - int(max(process_age(), 0.0) * 1e9)
    asked, given = read_settings(TrainArguments, "flatout train", argv)
    seeds, words, source = asked.seeds, list(asked.population), asked.from_
    several = seeds is not None or bool(words)

    def settings() -> tuple[TrainConfig, bool]:
        """Return the settings that the arguments ask for; a resumed run has those of its folder."""
        config, resume = settle(asked, given)
        if not asked.continue_:
            return config, resume
        from flatout.cli.continuing import continued

        if resume or source is not None:
            raise UsageError("--continue finds out whether to resume: drop --resume and --from.")
        return continued(config, several)

    config, resume = settings()
    if source is not None and several:
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
        if several or (resume and (path / POPULATION).exists()):
            from flatout.cli import population

            return population.train(
                config, seeds, words, asked.strategy, path, resume, interrupts, asked.continue_,
                asked.dry_run,
            )  # fmt: skip
        if asked.strategy is not None:
            raise UsageError("--strategy is for populations: --seeds or --population.")
        if asked.dry_run:
            from flatout.cli.dry_run import dry_run

            with interrupts.discardable():
                return dry_run(config)
        start = None
        if source is not None:
            from flatout.cli.carried import start_from

            with interrupts.discardable():
                names = given_settings(asked, given)
                config, start = start_from(Path(source), config, names)
        named = config.run.run_dir is not None
        folder = RunFolder(path, resume, report=True) if named else new_folder(config)
        path, display = folder.named, Display()
        console = Console(stderr=config.run.json)
        try:
            if resume:  # as they are now that no other process can change them
                from flatout.populations.alone import continues_at

                config, _ = settings()
                continues_at(path)
                if folder.parent is not None and not folder.has_saved:
                    from flatout.cli.carried import start_from

                    config, start = start_from(Path(folder.parent), config, set(config.flat()))
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
        from flatout.cli.changed_command import changed_command
        from flatout.run.display import report

        setting = (summary["try"] or {}).get("setting", ())
        again = changed_command(asked, given, config, setting) if setting else []
        report(summary, console, again)
    if asked.resume is not None and "steps" in given and summary:
        _note_total(path, summary, config.run.steps)
    trouble(stdout(), f"the summary is in {path}")
    if trainer.interrupted is None:  # another signal came as the run ended
        return 0 if interrupts.signum is None else 128 + interrupts.signum
    state = "before the first step; nothing was trained"
    if summary:
        state = f"saved; resume with: flatout train --resume {shell_word(path)}"
    say(f"interrupted, {state}")
    return 128 + trainer.interrupted


def _note_total(path: Path, summary: Mapping[str, Any], steps: int) -> None:
    """Say that ``--steps`` is a total if the resumed run already had more steps than that."""
    done = summary["steps"]
    if done - steps < done / max(summary["iterations"], 1):  # a run ends with a whole iteration
        return
    from flatout.output import say

    say(
        f"{path} has {done:,} steps, more than --steps {steps}, which is the run's total; for "
        f"{steps:,} more: flatout train --resume {shell_word(path)} --steps {done + steps}"
    )


def process_age() -> float:
    """Return the seconds since this process was started.

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
