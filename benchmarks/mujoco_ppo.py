"""PPO on MuJoCo's robots at CleanRL's settings: what is learned in 1M steps, and how soon?

Each robot's preset (`halfcheetah-ppo`, `hopper-ppo`, `walker2d-ppo`) trains five seeds, and
Stable-Baselines3 three with the same settings and networks. Every process runs on one core, the
same for both sides. The final parameters then play 20 greedy episodes. Runs alternate between the
sides, seed by seed; finished runs are kept, so that the same command resumes.

The run folders stay in benchmarks/runs/mujoco_ppo: `flatout report` compares them with intervals
and draws their curves.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence

from harness import BenchmarkError, Command, Row, json_of, main, parser, run_child
from learning import Task, run_tasks
from report import mean_std, provenance, spread, table, write_section

NAME = "mujoco_ppo"
ROBOTS = {"halfcheetah": "HalfCheetah-v5", "hopper": "Hopper-v5", "walker2d": "Walker2d-v5"}
PEER_SEEDS = 3
EPISODES = 20
EVAL_SEED = 1000
"""Evaluation episodes have their own seeds: this plus the run's."""

CLEANRL = {"halfcheetah": "1,443 ± 46", "hopper": "2,383 ± 272", "walker2d": "2,288 ± 572"}
"""CleanRL's documentation, ppo_continuous_action.py, v4 of the environments, 3 seeds."""

SETTINGS = {
    "n_steps": 2048, "batch_size": 64, "n_epochs": 10, "learning_rate": "lin_0.0003",
    "clip_range": 0.2, "clip_range_vf": 0.2, "vf_coef": 0.25,
}  # fmt: skip
"""The presets' settings, for Stable-Baselines3."""


def greedy(train: Command, result: Row) -> Row:
    """Add the greedy return of the final parameters."""
    argv = [
        train.argv[0], "eval", str(train.run_dir), "--episodes", str(EPISODES), "--checkpoint",
        "final", "--seed", str(EVAL_SEED + result["seed"]), "--json",
    ]  # fmt: skip
    found = json_of(run_child(argv), "flatout eval")
    return result | {"eval_return_mean": found["return_mean"]}


def process_s(row: Row) -> float:
    """Seconds of the process up to the end of training: Stable-Baselines3's also evaluates."""
    result = row["result"]
    if "train_s" not in result:
        return row["wall_s"]
    return result["import_s"] + result["startup_s"] + result["train_s"]


def each_seed(rows: Sequence[Row]) -> str:
    """A table with one row per run."""
    body = [
        [
            str(row["seed"]), f"{row['result']['eval_return_mean']:,.0f}",
            f"{row['result']['return_mean_100']:,.0f}", f"{row['result']['steps_per_s']:,.0f}",
            f"{process_s(row):.0f}",
        ]
        for row in rows
    ]  # fmt: skip
    head = ["seed", "greedy return", "last 100 episodes", "steps/s", "whole process, s"]
    return table(head, body)


def tasks(args: argparse.Namespace) -> dict[str, Task]:
    """Both sides of each robot, in turn."""
    found: dict[str, Task] = {}
    for robot, env in ROBOTS.items():
        flags = ("--preset", f"{robot}-ppo", "--steps", str(args.steps))
        found[f"{robot}-ppo"] = Task(flags, greedy, each_seed)
        peer = (
            "--env", env, "--envs", "1", "--steps", str(args.steps), "--normalize",
            "--hyper", json.dumps(SETTINGS), "--eval-episodes", str(EPISODES), "--threads", "1",
        )  # fmt: skip
        found[f"{robot}-sb3"] = Task(peer, None, each_seed, program="sb3_ppo.py", seeds=PEER_SEEDS)
    return found


def benchmark(args: argparse.Namespace) -> None:
    """Run what is missing on one core and write the section.

    Raises:
        BenchmarkError: the core cannot be used.
    """
    try:
        os.sched_setaffinity(0, {args.core})
    except OSError as error:
        raise BenchmarkError(f"--core {args.core}: {error.strerror}.") from None
    wanted = tasks(args)
    done = run_tasks(args, NAME, wanted, args.minutes, seeds_first=True)
    write_section(args, NAME, section(args, wanted, done))


def compared(done: Mapping[str, Sequence[Row]]) -> str:
    """One row per robot: returns and times of both sides."""
    body = []
    for robot in ROBOTS:
        ours, theirs = done.get(f"{robot}-ppo"), done.get(f"{robot}-sb3")
        if not ours:
            continue
        body.append([ROBOTS[robot], *_side(ours), *_side(theirs or ()), CLEANRL[robot]])
    head = [
        "environment", "flatout, greedy", "last 100", "s", "SB3, greedy", "last 100", "s",
        "CleanRL states (v4)",
    ]  # fmt: skip
    return table(head, body)


def _side(rows: Sequence[Row]) -> list[str]:
    """Greedy return, training return and seconds of one side."""
    if not rows:
        return ["-", "-", "-"]
    results = [row["result"] for row in rows]
    return [
        f"{mean_std([result['eval_return_mean'] for result in results], 0)} ({len(rows)})",
        mean_std([result["return_mean_100"] for result in results], 0),
        spread([process_s(row) for row in rows], 0),
    ]


def pairs(ours: Sequence[Row], theirs: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Both sides' runs of the same seed on the same machine."""
    return [
        (our, their)
        for our in ours
        for their in theirs
        if (our["seed"], our.get("machine")) == (their["seed"], their.get("machine"))
    ]


def speedups(done: Mapping[str, Sequence[Row]]) -> str:
    """How many times as fast Flatout is, from pairs."""
    body = []
    for robot in ROBOTS:
        found = pairs(done.get(f"{robot}-ppo", ()), done.get(f"{robot}-sb3", ()))
        if not found:
            continue
        training = [a["result"]["steps_per_s"] / b["result"]["steps_per_s"] for a, b in found]
        whole = [process_s(b) / process_s(a) for a, b in found]
        body.append([ROBOTS[robot], str(len(found)), spread(training, 1), spread(whole, 1)])
    return table(["environment", "pairs", "steps/s", "whole process"], body)


def section(
    args: argparse.Namespace, wanted: Mapping[str, Task], done: dict[str, list[Row]]
) -> str:
    """The Markdown of the benchmark."""
    parts = [
        f"{args.steps:,} steps with one environment on one core. Returns are the mean ± standard "
        f"deviation over seeds (their number in brackets): of {EPISODES} greedy episodes with the "
        "final parameters, and of the last 100 training episodes. Seconds are those of the whole "
        "process without evaluation, compiling included (median, least and greatest).",
        compared(done),
        "Flatout's speed, as a multiple of Stable-Baselines3's, from runs of the same seed on the "
        "same machine (median, least and greatest):",
        speedups(done),
    ]
    for label, rows in done.items():
        asked = min(args.seeds, wanted[label].seeds or args.seeds)
        missing = f"\n\n**{asked - len(rows)} of {asked} seeds still missing.**"
        shown = wanted[label].show(rows) if rows else ""
        parts.append(f"`{label}`\n\n{shown}" + (missing if len(rows) < asked else ""))
    done = {label: rows for label, rows in done.items() if rows}
    return "\n\n".join(["## PPO on MuJoCo's robots", provenance(args, done), *parts]) + "\n"


if __name__ == "__main__":
    options = parser(__doc__, seeds=5)
    add = options.add_argument
    add("--only", nargs="+", default=None, help="names of tasks, such as hopper-ppo")
    add("--minutes", type=float, default=float("inf"), help="end after this many minutes")
    add("--steps", type=int, default=1_000_000, help="environment steps of each run")
    add("--core", type=int, default=0, help="the core on which every process runs")
    main(benchmark, options.parse_args())
