"""What Flatout learns, and how reliably: its presets over several seeds.

- ``cartpole``: environment steps until the last 100 returns have a mean of 475 (within 100,000).
- ``pendulum``: 100,000 steps, then 100 greedy episodes with the final parameters.

It ends after 15 minutes (``--minutes``): a run that would last longer is not started, or killed.
What is missing then, the same command adds next time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness import (
    BenchmarkError,
    Command,
    OutOfTimeError,
    Row,
    Store,
    json_of,
    main,
    named,
    parser,
    peer_command,
    run_child,
    train_command,
)
from report import mean_std, provenance, spread, table, write_section

NAME = "learning"
GOAL = "475"
EVAL_EPISODES = 100
POINTS = 10
MEAN_KEY = "rollout/return_mean_100"


@dataclass(frozen=True)
class Task:
    """One preset: its flags, what is measured after a run, and how it is shown.

    With `program` it is that program of ``peers`` which is run; `seeds` limits the runs.
    """

    flags: tuple[str, ...]
    finish: Callable[[Command, Row], Row] | None
    show: Callable[[Sequence[Row]], str]
    algorithm: str = "ppo"
    program: str | None = None
    seeds: int | None = None

    def command(self, args: argparse.Namespace, name: str, label: str, seed: int) -> Command:
        """One run."""
        if self.program is not None:
            return peer_command(args, self.program, seed, *self.flags)
        return train_command(
            args, name, label, seed, *self.flags, algorithm=self.algorithm, finish=self.finish
        )


# --- What is measured after each run ----------------------------------------------------------


def evaluated(train: Command, result: Row) -> Row:
    """Add the greedy return of the final parameters."""
    argv = [
        train.argv[0], "eval", str(train.run_dir), "--episodes", str(EVAL_EPISODES),
        "--checkpoint", "final", "--json",
    ]  # fmt: skip
    found = json_of(run_child(argv), "flatout eval")
    return result | {"eval_mean": found["return_mean"], "eval_std": found["return_std"]}


def curve(train: Command, result: Row) -> Row:
    """Add the mean of the last 100 scores at ten points, as ``[steps, mean, seconds]``.

    Raises:
        BenchmarkError: the run's metrics do not hold it.
    """
    assert train.run_dir is not None
    text = (train.run_dir / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    known = [
        (row["step"], row[MEAN_KEY], row["time/wall_s"])
        for row in rows
        if row.get(MEAN_KEY) is not None
    ]
    points = []
    for index in range(1, POINTS + 1):
        wanted = result["steps"] * index // POINTS
        reached = [point for point in known if point[0] >= wanted] or known[-1:]
        if not reached:
            raise BenchmarkError(f"{train.run_dir.name}: no {MEAN_KEY} in its metrics.jsonl.")
        points.append([wanted, *reached[0][1:]])
    return result | {"curve": points}


# --- How it is shown --------------------------------------------------------------------------


def show_cartpole(rows: Sequence[Row]) -> str:
    """Solved runs and the steps that it took."""
    results = [row["result"] for row in rows]
    steps = [result["steps_to_return"].get(str(float(GOAL))) for result in results]
    solved = [count for count in steps if count is not None]
    lines = [
        f"CartPole-v1, a mean of 100 training returns of {GOAL} within 100,000 steps "
        f"(`cartpole-ppo`): **{len(solved)} of {len(rows)} seeds**"
        + (f", after {spread(solved, 0)} steps." if solved else ".")
    ]
    body = [
        [
            str(row["seed"]), "not reached" if count is None else f"{count:,}",
            f"{row['wall_s']:.1f}",
        ]
        for row, count in zip(rows, steps, strict=True)
    ]  # fmt: skip
    return "\n\n".join([*lines, table(["seed", "steps to 475", "whole process, s"], body)])


def show_pendulum(rows: Sequence[Row]) -> str:
    """Greedy returns of the final parameters."""
    means = [row["result"]["eval_mean"] for row in rows]
    body = [
        [
            str(row["seed"]), f"{row['result']['eval_mean']:.1f} ± {row['result']['eval_std']:.1f}",
            f"{row['result']['steps_per_s']:,.0f}", f"{row['wall_s']:.1f}",
        ]
        for row in rows
    ]  # fmt: skip
    head = ["seed", "return, mean ± std of episodes", "steps/s", "training process, s"]
    return (
        f"Pendulum-v1, {rows[0]['result']['steps']:,} steps (`pendulum-ppo`), then "
        f"{EVAL_EPISODES} greedy episodes with the final parameters: **{mean_std(means)}** "
        f"(mean ± std of {len(rows)} seeds).\n\n{table(head, body)}"
    )


def show_curve(what: str, preset: str) -> Callable[[Sequence[Row]], str]:
    """Shows the learning curve over seeds."""

    def show(rows: Sequence[Row]) -> str:
        curves = [row["result"]["curve"] for row in rows]
        body = []
        for point in zip(*curves, strict=True):
            scores = [score for _, score, _ in point]
            body.append(
                [f"{point[0][0]:,}", mean_std(scores, 2), *(f"{score:.2f}" for score in scores)]
            )
        seeds = [f"seed {row['seed']}" for row in rows]
        final = [each[-1][1] for each in curves]
        rate = statistics.median(row["result"]["steps_per_s"] for row in rows)
        return (
            f"{what}, {rows[0]['result']['steps']:,} steps (`{preset}`), {rate:,.0f} steps/s: "
            f"mean score of the last 100 training episodes **{mean_std(final, 2)}** "
            f"(mean ± std of {len(rows)} seeds).\n\n"
            + table(["steps", "mean ± std of seeds", *seeds], body)
        )

    return show


def tasks() -> dict[str, Task]:
    """The tasks in the order in which they run."""
    cartpole = ("--preset", "cartpole-ppo", "--threshold", GOAL, "--stop-at-return", GOAL)
    return {
        "cartpole": Task((*cartpole, "--steps", "100000"), None, show_cartpole),
        "pendulum": Task(
            ("--preset", "pendulum-ppo", "--steps", "100000"), evaluated, show_pendulum
        ),
    }


def benchmark(args: argparse.Namespace) -> None:
    """Run what is missing, task by task, and write the section."""
    done = run_tasks(args, NAME, tasks(), args.minutes)
    write_section(args, NAME, section(args, done))


def run_tasks(
    args: argparse.Namespace, name: str, wanted: Mapping[str, Task], minutes: float,
    seeds_first: bool = False,
) -> dict[str, list[Row]]:  # fmt: skip
    """Run what is missing of the tasks until `minutes` are over; rows by task.

    Args:
        args: the command line.
        name: of the benchmark.
        wanted: the tasks, of which ``--only`` may choose some.
        minutes: after which nothing more is started.
        seeds_first: every task with one seed before any with the next, instead of task by task.

    Raises:
        BenchmarkError: a name that is no task's, or there was no time for anything.
    """
    started, chosen = time.monotonic(), named(wanted, args.only)
    done: dict[str, list[Row]] = {label: [] for label in chosen}
    runs = [
        (label, seed)
        for label, task in chosen.items()
        for seed in range(min(args.seeds, task.seeds or args.seeds))
    ]
    if seeds_first:
        runs.sort(key=lambda run: run[1])  # stable: the tasks keep their order
    for label, seed in runs:
        task = chosen[label]
        settings = {"flags": list(task.flags), "extra": args.flatout_args}
        store = Store(name, settings, args)
        args.fresh = False  # the tasks share one file, which the first has put aside
        longest = max((row["wall_s"] for row in done[label]), default=0.0)
        left = minutes * 60 - (time.monotonic() - started)
        if store.get(label, seed) is None and left < max(longest, 1.0):
            print(f"{name}: no time left for {label}, seed {seed}", file=sys.stderr)
            continue
        command = task.command(args, name, label, seed)
        try:
            row = store.run(label, seed, command, min(args.timeout, max(left, 1.0)))
        except OutOfTimeError as error:
            print(f"{error} --minutes and --timeout allow more.", file=sys.stderr)
            continue
        done[label].append(row)
    if not any(done.values()):
        raise BenchmarkError("nothing was run: no time was left.")
    return done


def section(args: argparse.Namespace, done: dict[str, list[Row]]) -> str:
    """The Markdown of this benchmark."""
    parts = []
    for label, rows in done.items():
        missing = args.seeds - len(rows)
        note = f"\n\n**{missing} of {args.seeds} seeds still missing.**" if missing else ""
        parts.append((tasks()[label].show(rows) if rows else f"{label}:") + note)
    shown = "\n\n".join(parts)
    return f"## What is learned\n\n{provenance(args, done)}\n\n{shown}\n"


if __name__ == "__main__":
    options = parser(__doc__, seeds=5)
    options.add_argument("--only", nargs="+", choices=tuple(tasks()))
    options.add_argument("--minutes", type=float, default=15.0, help="end after this many minutes")
    main(benchmark, options.parse_args())
