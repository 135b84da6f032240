"""Runs killed with SIGKILL and resumed: does each end with the bits of one that was never killed?

Every kill draws from its number what it hits: a run while it starts, while it trains (at a random
time), inside the writing of a checkpoint (before a chosen call of fsync, rename or replace), or
inside an evaluation (before a chosen step of it). A run is killed and resumed again and again until
it reaches its end, and is then compared with an uninterrupted one: parameters, optimiser, counters,
replayed rows, rows of metrics and episodes. The same command continues after the last kill.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from harness import HERE, REPO, BenchmarkError, Lines, Row, main, parser, refuse_late
from report import provenance, table, write_section

sys.path.insert(0, str(REPO))

from tests.kills import assert_same, final_state, finish, spawn, stamp, wait_for

NAME = "kills"
PLACES = {"train": 0.4, "save": 0.3, "evaluate": 0.2, "start": 0.1}
"""The parts of a run in which it is killed, with the share of the kills."""

CALLS, CHOICES, START_S, TRAIN_S = 60, 150, 3.0, 1.5
"""The greatest numbers drawn: of a call that saves, of an evaluation's step, of seconds."""

CARTPOLE = ("--env", "CartPole-v1", "--eval-every", "1280", "--eval-episodes", "3")
PENDULUM = ("--env", "Pendulum-v1", "--env-kwargs", "max_episode_steps=37", "--eval-every", "320",
            "--eval-episodes", "2", "--learning-starts", "50", "--hidden", "16", "--batch-size",
            "16", "--buffer-size", "600", "--checkpoint-every", "60")  # fmt: skip
ROLLOUTS = ("--envs", "4", "--n-steps", "16", "--checkpoint-every", "128", "--log-every", "128")
REPLAY = ("--hidden", "16", "--buffer-size", "600", "--batch-size", "16", "--log-every", "300",
          "--learning-starts", "200", "--checkpoint-every", "150")  # fmt: skip
CENTRAL = "sampler=processes workers=2x2"
LOCAL = "sampler=processes workers=2x2 inference=local"
VARIANTS: dict[str, tuple[str, ...]] = {
    "ppo, inline, serial, normalised": (
        "ppo", *CARTPOLE, *ROLLOUTS, "--batch-size", "32", "--n-epochs", "2", "--steps", "9600",
        "--normalize-observation", "--normalize-reward",
    ),
    "ppo, processes, overlapped": (
        "ppo", *CARTPOLE, *ROLLOUTS, "--batch-size", "32", "--n-epochs", "2", "--steps", "6400",
        "--placement", f"{CENTRAL} schedule=overlapped",
    ),
    "ppo, processes that act, serial": (
        "ppo", *CARTPOLE, *ROLLOUTS, "--batch-size", "32", "--n-epochs", "2", "--steps", "6400",
        "--placement", LOCAL,
    ),
    "a2c, inline, overlapped": (
        "a2c", *CARTPOLE, *ROLLOUTS, "--steps", "9600", "--placement", "schedule=overlapped",
    ),
    "dqn, inline, serial, n-step": (
        "dqn", *CARTPOLE, *REPLAY, "--envs", "3", "--n-step", "3", "--steps", "5100",
    ),
    "dqn, processes, overlapped, prioritised": (
        "dqn", *CARTPOLE, *REPLAY, "--envs", "4", "--prioritized", "--train-freq", "8", "--steps",
        "4800", "--placement", f"{CENTRAL} schedule=overlapped",
    ),
    "dqn, inline, serial, replay on the device": (
        "dqn", *CARTPOLE, *REPLAY, "--envs", "2", "--steps", "4000", "--placement",
        "act=cpu replay=device",
    ),
    "ddpg, inline, serial": ("ddpg", *PENDULUM, "--steps", "1500"),
    "td3, inline, overlapped": (
        "td3", *PENDULUM, "--steps", "1500", "--placement", "schedule=overlapped",
    ),
    "sac, inline, serial": ("sac", *PENDULUM, "--steps", "1200"),
    "sac, processes, serial": (
        "sac", *PENDULUM, "--envs", "4", "--steps", "2400", "--placement", CENTRAL,
    ),
    "genetic, inline, serial": (
        "genetic", *CARTPOLE, "--envs", "8", "--steps", "20000", "--checkpoint-every", "512",
        "--hidden", "16",
    ),
    "classify": ("classify", "--steps", "600", "--batch-size", "32", "--checkpoint-every", "20"),
}  # fmt: skip
BREAKOUT = ("--envs", "4", "--n-steps", "32", "--batch-size", "128", "--n-epochs", "1",
            "--env-kwargs", "max_num_frames_per_episode=1200", "--steps", "3072",
            "--checkpoint-every", "256", "--log-every", "256")  # fmt: skip
GAME, STICKY = ("--env", "BreakoutNoFrameskip-v4"), ("--env", "ALE/Breakout-v5")
ATARI: dict[str, tuple[str, ...]] = {
    "ppo, Breakout, inline, spares": ("ppo", *GAME, *BREAKOUT, "--spare-envs", "all"),
    "ppo, Breakout, processes, spares": (
        "ppo", *GAME, *BREAKOUT, "--spare-envs", "all", "--placement", CENTRAL,
    ),
    "ppo, Breakout, inline, sticky actions": ("ppo", *STICKY, *BREAKOUT),
}  # fmt: skip
ALWAYS = ("--no-tensorboard", "--quiet", "--seed", "4")


def whole_run(run: Path, words: tuple[str, ...]) -> Path:
    """Return the folder of an uninterrupted run; make it if there is none."""
    if not (run / "summary.json").exists():
        shutil.rmtree(run, ignore_errors=True)
        done = finish(spawn(*words, "--run-dir", str(run)), 600)
        if done.code:
            raise BenchmarkError(f"{run.name}: the uninterrupted run failed: {done.err}")
    return run


def difference_of(run: Path, whole: Path) -> str:
    """Return where the ends of two runs differ; nothing if they are equal to the last bit."""
    try:
        assert_same(final_state(run), final_state(whole))
    except AssertionError as error:
        return str(error) or "something"
    return ""


def newest(run: Path) -> str:
    """Return the name of a run's newest checkpoint."""
    return max((path.name for path in (run / "checkpoints").glob("step_*")), default="none")


class Series:
    """The kills made so far, and those to come."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.variants = ATARI if args.atari else VARIANTS
        self.name = f"{NAME}_atari" if args.atari else NAME
        self._lines = Lines(self.name, args)
        self._folder = HERE / "runs" / self.name
        if not self._lines.rows:  # runs of other source code are not resumed
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def kills(self) -> list[Row]:
        """One row for each kill."""
        return [row for row in self._lines.rows if "place" in row]

    @property
    def ends(self) -> list[Row]:
        """One row for each run that reached its end."""
        return [row for row in self._lines.rows if "equal" in row]

    def whole(self, variant: str) -> Path:
        """Return the folder of the variant's uninterrupted run."""
        return whole_run(self._folder / "whole" / _name(variant), _train(variant))

    def kill(self) -> None:
        """Make the next kill. A run that ends before it is compared, and another one begins."""
        number = len(self.kills)
        dice = random.Random(number)
        variant = list(self.variants)[number % len(self.variants)]
        place = dice.choices(list(PLACES), list(PLACES.values()))[0]
        if place == "evaluate" and "--eval-every" not in self.variants[variant]:
            place = "save"
        self.whole(variant)
        for _ in range(20):
            run = self._run(variant)
            struck = _strike(variant, run, place, dice)
            if struck is None:
                self._compare(variant, run)
                continue
            self._add({"kill": number, "variant": variant, "place": place, **struck})
            return
        raise BenchmarkError(f"{variant}: 20 runs ended before {place} could be hit.")

    def end_all(self) -> None:
        """Resume every run that was killed until its end."""
        for variant in self.variants:
            run = self._run(variant)
            if run.name in {row["run"] for row in self.kills}:
                done = finish(spawn(*_command(variant, run)), 600)
                if done.code:
                    raise BenchmarkError(f"{variant}: the last resume failed: {done.err}")
                self._compare(variant, run)

    def _run(self, variant: str) -> Path:
        """Return the folder of the variant's present run."""
        number = sum(row["variant"] == variant for row in self.ends)
        return self._folder / f"{_name(variant)}-{number}"

    def _compare(self, variant: str, run: Path) -> None:
        difference = difference_of(run, self.whole(variant))
        ended = [row["run"] for row in self.kills].count(run.name)
        self._add({"variant": variant, "kills": ended, "equal": not difference,
                    "difference": difference, "run": run.name})  # fmt: skip
        if not difference:
            shutil.rmtree(run)

    def _add(self, row: Row) -> None:
        self._lines.add(row)
        print(json.dumps(row), file=sys.stderr, flush=True)


def _name(variant: str) -> str:
    return variant.replace(", ", "-").replace(" ", "-")


def _train(variant: str) -> tuple[str, ...]:
    return ("train", *(VARIANTS | ATARI)[variant], *ALWAYS)


def _command(variant: str, run: Path) -> tuple[str, ...]:
    """Return the command that begins or resumes a run."""
    if (run / "config.json").exists():
        return ("train", "--resume", str(run), "--quiet")
    return (*_train(variant), "--run-dir", str(run))


def _strike(variant: str, run: Path, place: str, dice: random.Random) -> Row | None:
    """Start or resume a run and kill it; return None if it ended before.

    Raises:
        BenchmarkError: it failed.
    """
    argv = _command(variant, run)
    row: Row = {"run": run.name, "resumed": "--resume" in argv}
    before = stamp(run)
    if place in ("save", "evaluate"):
        row["at"] = dice.randint(1, CALLS if place == "save" else CHOICES)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.kill_within", place, str(row["at"]), *argv], cwd=REPO,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    else:
        process = spawn(*argv)
        if place == "train":
            wait_for(lambda: stamp(run) != before or process.poll() is not None, 120)
        row["after_s"] = round(dice.uniform(0.0, TRAIN_S if place == "train" else START_S), 3)
        time.sleep(row["after_s"])
        process.kill()
    done = finish(process, 600)
    if done.code == -signal.SIGKILL:
        unfinished = any((run / "checkpoints").glob(".step_*"))
        return row | {"newest": newest(run), "unfinished": unfinished}
    if done.code:
        raise BenchmarkError(f"{variant}, {run.name}: ended with {done.code}: {done.err}")
    return None


def benchmark(args: argparse.Namespace) -> None:
    """Kill `--kills` times, resume all runs until their ends, write the section."""
    series = Series(args)
    while len(series.kills) < args.kills:
        refuse_late(args)
        series.kill()
    series.end_all()
    write_section(args, series.name, section(args, series))


def section(args: argparse.Namespace, series: Series) -> str:
    """Return the Markdown of this benchmark."""
    rows: list[Row] = []
    for variant in series.variants:
        mine = [row for row in series.kills if row["variant"] == variant]
        if not mine:
            continue
        told: dict[str, Any] = json.loads((series.whole(variant) / "summary.json").read_text())
        rows += [
            row | {"result": {"versions": told["versions"]}, "other_load": None} for row in mine
        ]
    body: list[list[str]] = []
    for variant in [*series.variants, None]:
        if not (kills := [row for row in series.kills if variant in (row["variant"], None)]):
            continue
        ends = [row for row in series.ends if variant in (row["variant"], None) and row["kills"]]
        places = Counter(row["place"] for row in kills)
        unfinished = sum(row["unfinished"] for row in kills)
        equal = sum(row["equal"] for row in ends)
        counts = (len(kills), *(places[place] for place in PLACES), unfinished)
        body.append([variant or "**all**", *map(str, counts), f"{equal} of {len(ends)}"])
    head = ["run", "kills", *PLACES, "left half a checkpoint", "ended bit-equal"]
    return f"""## Kills{" of runs on Breakout" if args.atari else ""}

{provenance(args, {"Flatout": rows})}
- SIGKILL while training at a random time, inside saving, inside an evaluation, while starting; then
  resumed, killed again, until the run's end, which is compared to the last bit with a run that was
  never killed.

{table(head, body)}
"""


if __name__ == "__main__":
    options = parser(__doc__, minutes=60.0)
    options.add_argument("--kills", type=int, default=200, help="how many")
    options.add_argument("--atari", action="store_true", help="kill runs on Breakout")
    main(benchmark, options.parse_args())
